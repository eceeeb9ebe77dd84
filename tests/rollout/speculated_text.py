"""Decoding with drafts, for a model that is a function of the context."""

from regrow.rollout.sampling import uniform
from regrow.rollout.verify import verify


def speculate(target, propose, seed, num_sequences, length, draws=1):
    """The first `length` tokens of sequences that speculation emits, all in one batch: a list of lists.

    target: a list of contexts, lists of tokens -> probabilities [contexts, V]. propose: the number of a sequence and
    its tokens -> Draft. Position p of a sequence has the random numbers of (seed, sequence, p).
    """
    texts = [[] for _ in range(num_sequences)]
    while running := [sequence for sequence, text in enumerate(texts) if len(text) < length]:
        drafts = [propose(sequence, texts[sequence]) for sequence in running]
        rows = [
            (sequence, texts[sequence] + draft.path(node))
            for sequence, draft in zip(running, drafts, strict=True)
            for node in range(-1, len(draft))
        ]
        contexts = [context for _, context in rows]
        sequences, positions = [sequence for sequence, _ in rows], [len(context) for context in contexts]
        verified = verify(drafts, target(contexts), uniform(seed, sequences, positions, draws))
        for sequence, draft, kept in zip(running, drafts, verified, strict=True):
            texts[sequence] += [draft.tokens[node] for node in kept.path] + [kept.token]
    return [text[:length] for text in texts]
