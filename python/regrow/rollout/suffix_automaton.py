"""Every substring of a growing set of sequences, with its number of occurrences: a suffix automaton, online.

A state is a set of strings that end at the same places (Blumer et al. 1985, "The smallest automaton recognizing the
subwords of a text"); several sequences grow at once, each from its own cursor, and may begin at the end of a common
prompt, whose occurrences then count once.

Per token: at most two states and three entries of `children`, and a number of steps that is constant when averaged over
a sequence and its prompt; besides, one step per state on the chain of suffix links, at most `max_length`.
"""

ROOT = 0


class Cursor:
    """Where a sequence ends.

    `whole` is the state of all of it. `counted` holds a suffix of at least `max_length` tokens, or all: where other
    sequences have split it since, the state of the last `max_length` tokens is further up its suffix links.
    """

    __slots__ = ("counted", "whole")

    def __init__(self, whole=ROOT, counted=ROOT):
        self.whole = whole
        self.counted = counted

    def copy(self):
        return Cursor(self.whole, self.counted)


class SuffixAutomaton:
    """Counts are exact for strings of up to `max_length` tokens.

    >>> automaton, cursor = SuffixAutomaton(max_length=8), Cursor()
    >>> for token in [1, 2, 3, 1, 2]:
    ...     automaton.append(cursor, token)
    >>> state, length = automaton.match(cursor, max_match=4)
    >>> length, {token: automaton.counts[child] for token, child in automaton.children[state].items()}
    (2, {3: 1})
    """

    def __init__(self, max_length):
        self.max_length = max_length
        self.num_tokens = 0  # appended so far: also the clock
        self.lengths = [0]  # of a state's longest string
        self.links = [-1]  # to the state of the longest suffix that ends at more places
        self.children = [{}]  # token -> state; a string has the children of its state
        self.counts = [0]  # places where the strings end; the root's stays 0
        self.latest = [0]  # the clock at the last of them

    def append(self, cursor, token):
        """The cursor's sequence goes on with this token."""
        lengths, links, counts, latest = self.lengths, self.links, self.counts, self.latest
        length = lengths[cursor.whole]
        cursor.whole = self._state_after(cursor.whole, token)
        counted = cursor.whole if length < self.max_length else self.children[cursor.counted][token]
        while lengths[links[counted]] >= self.max_length:
            counted = links[counted]
        cursor.counted = counted

        self.num_tokens += 1
        while counted != ROOT:
            counts[counted] += 1
            latest[counted] = self.num_tokens
            counted = links[counted]

    def match(self, cursor, max_match):
        """The state and length of the longest suffix, up to max_match tokens, that has gone on before; or (ROOT, 0).

        A suffix that occurs only at the ends of sequences has no children, and gives way to a shorter one.
        """
        lengths, links, children = self.lengths, self.links, self.children
        state = cursor.counted
        while state != ROOT and (lengths[links[state]] >= max_match or not children[state]):
            state = links[state]
        return state, min(lengths[state], max_match)

    def _state_after(self, whole, token):
        lengths, links, children = self.lengths, self.links, self.children
        known = children[whole].get(token)
        if known is not None:  # another sequence was here
            return self._exactly(whole, token, known)

        state = self._new_state(lengths[whole] + 1, ROOT, {}, 0)
        while whole >= 0 and token not in children[whole]:
            children[whole][token] = state
            whole = links[whole]
        if whole >= 0:
            links[state] = self._exactly(whole, token, children[whole][token])
        return state

    def _exactly(self, above, token, state):
        """The state whose longest string is that of `above` and the token: `state`, or what is split off from it."""
        lengths, links, children = self.lengths, self.links, self.children
        if lengths[state] == lengths[above] + 1:
            return state
        split = self._new_state(lengths[above] + 1, links[state], children[state].copy(), self.counts[state])
        links[state] = split
        while above >= 0 and children[above].get(token) == state:
            children[above][token] = split
            above = links[above]
        return split

    def _new_state(self, length, link, children, count):
        self.lengths.append(length)
        self.links.append(link)
        self.children.append(children)
        self.counts.append(count)
        self.latest.append(0)  # a new state ends where the sequence does: `append` is about to set it
        return len(self.lengths) - 1
