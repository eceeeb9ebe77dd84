"""The rule of SuffixDrafter by search through all text; slow, and without a shared line of code."""


class NaiveSuffix:
    """One group of sequences. `places`: the text up to and with each token, in the order of observation."""

    def __init__(self, max_match, min_match, max_depth, growth, min_score):
        self.max_match, self.min_match, self.max_depth = max_match, min_match, max_depth
        self.growth, self.min_score = growth, min_score
        self.places, self.texts, self.prompts = [], {}, set()
        self.right, self.expected = {}, {}

    def begin(self, sequence, prompt):
        if tuple(prompt) not in self.prompts:
            self.prompts.add(tuple(prompt))
            self.places += [prompt[: end + 1] for end in range(len(prompt))]
        self.texts[sequence] = list(prompt)

    def observe(self, sequence, tokens):
        for token in tokens:
            match = self.longest_match(sequence)
            if len(match) >= self.min_match:
                following = self.following(match)
                best = min(following, key=lambda other: tuple(-x for x in following[other]))
                length = len(match)
                share = following[best][0] / sum(count for count, _ in following.values())
                self.expected[length] = self.expected.get(length, 0) + share
                self.right[length] = self.right.get(length, 0) + (best == token)
                if self.expected[length] > 64:
                    self.expected[length] /= 2
                    self.right[length] /= 2
            self.texts[sequence] = [*self.texts[sequence], token]
            self.places.append(self.texts[sequence])

    def following(self, context):
        """token -> (count, latest) over all places where the token ends context + token."""
        found, size = {}, len(context)
        for clock, text in enumerate(self.places):
            if len(text) > size and text[len(text) - 1 - size : -1] == context:
                found[text[-1]] = (found.get(text[-1], (0, 0))[0] + 1, clock)
        return found

    def longest_match(self, sequence):
        text = self.texts[sequence]
        for length in range(min(self.max_match, len(text)), 0, -1):
            if self.following(text[-length:]):
                return text[-length:]
        return []

    def confidence(self, length):
        length = min(length, self.max_match)
        return min(1, (self.right.get(length, 0) + 4 * length / (length + 4)) / (self.expected.get(length, 0) + 4))

    def propose(self, sequence, max_tokens, depth, width):
        """{path: score} in the order in which the nodes are taken."""
        match = self.longest_match(sequence)
        if len(match) < self.min_match:
            return {}
        limit = min(max_tokens, int(self.growth * len(match)))
        taken, frontier = {}, self._below(match, (), 1.0, width)
        while frontier and len(taken) < limit:
            _, path, score = best = min(frontier)
            frontier.remove(best)
            taken[path] = score
            if len(path) < min(depth, self.max_depth):
                frontier += self._below(match, path, score, width)
        return taken

    def _below(self, match, path, score, width):
        following = self.following([*match, *path])
        total = sum(count for count, _ in following.values())
        nodes = []
        for token in sorted(following, key=following.get, reverse=True)[:width]:
            count, latest = following[token]
            below = score * self.confidence(len(match) + len(path)) * (count / total)
            if below >= self.min_score:
                nodes.append(((-below, -count, -latest, len(path)), (*path, token), below))
        return nodes
