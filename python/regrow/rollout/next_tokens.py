"""From hidden states to tokens: the head, the sampled distribution, verification, and log-probs of what is emitted."""

from dataclasses import dataclass

import torch

from regrow.dtypes import accumulation_dtype
from regrow.logit_chunks import rows_per_chunk
from regrow.rollout.sampling import target_probabilities, uniform
from regrow.rollout.verify import verify
from regrow.skinny import MAX_ROWS

_ops = torch.ops.regrow


@dataclass(frozen=True)
class Emitted:
    """What one sequence gains by a step: accepted draft nodes, and tokens, one more than those, with log-probs."""

    path: list[int]
    tokens: list[int]
    logprobs: list[float]  # the model's own
    sampling_logprobs: list[float]  # of the distribution that was sampled


def chunks(sizes, limit):
    """Yields (end, sum) of runs of sizes that sum to at most the limit, or are one alone.

    >>> list(chunks([2, 3, 9, 1], limit=5))
    [(2, 5), (3, 9), (4, 1)]
    """
    total = 0
    for index, size in enumerate(sizes):
        if total and total + size > limit:
            yield index, total
            total = 0
        total += size
    if total:
        yield len(sizes), total


class NextTokens:
    """Draws and verifies for some sequences at once, a chunk of logits [rows, V] at a time.

    head: `regrow.head.Head`; sampling: `Sampling`; seed: an int of 64 bits.
    """

    def __init__(self, head, sampling, seed):
        self.head, self.sampling, self.seed = head, sampling, seed
        self.memory = {}  # of logits and of probabilities, used again

    def __call__(self, hidden, drafts, sequences, positions):
        """hidden [R,H]: for each draft the row of its last token, then one per node -> a list of `Emitted`.

        sequences: number of each; positions: how many response tokens each has, so the place of the one to be drawn.
        """
        emitted, begin, first = [], 0, 0
        for end, rows in chunks([1 + len(draft) for draft in drafts], rows_per_chunk(self.head.weight)):
            some = slice(begin, end)
            emitted += self._emit(hidden[first : first + rows], drafts[some], sequences[some], positions[some])
            begin, first = end, first + rows
        return emitted

    def _emit(self, hidden, drafts, sequences, positions):
        logits = self.logits(hidden)
        probabilities = target_probabilities(logits, self.sampling, out=self._rows("probabilities", hidden))
        verified = verify(drafts, probabilities, self._uniforms(drafts, sequences, positions))
        rows, tokens, first = [], [], 0
        for draft, one in zip(drafts, verified, strict=True):
            rows += [first, *(first + 1 + node for node in one.path)]
            tokens += [*(draft.tokens[node] for node in one.path), one.token]
            first += 1 + len(draft)
        own, sampled = self._logprobs(logits, probabilities, rows, tokens)
        emitted, begin = [], 0
        for one in verified:
            some = slice(begin, begin + 1 + len(one.path))
            emitted.append(Emitted(one.path, tokens[some], own[some], sampled[some]))
            begin = some.stop
        return emitted

    def logits(self, hidden):
        """[R,H] -> [R,V] in fp32 (fp64 for fp64); until the next call."""
        head = self.head
        logits = self._rows("logits", hidden)
        _ops.head_logits_out(hidden, head.weight, logits, few_rows=len(hidden) <= MAX_ROWS)
        if head.scale != 1:
            logits *= head.scale
        return logits if head.softcap is None else logits.div_(head.softcap).tanh_().mul_(head.softcap)

    def _rows(self, name, hidden):
        """[R,V] of the memory of this name."""
        if name not in self.memory or len(self.memory[name]) < len(hidden):
            shape = len(hidden), self.head.weight.size(0)
            self.memory[name] = hidden.new_empty(shape, dtype=accumulation_dtype(hidden.dtype))
        return self.memory[name][: len(hidden)]

    def _logprobs(self, logits, probabilities, rows, tokens):
        rows, tokens = (torch.tensor(x, device=logits.device) for x in (rows, tokens))
        sampled = probabilities[rows, tokens].log().tolist()
        lse, _ = _ops.logits_row_stats(logits, 1.0, None)
        return (logits[rows, tokens] - lse[rows]).tolist(), sampled

    def _uniforms(self, drafts, sequences, positions):
        """[R, draws]: the numbers of each row's sequence and position, whatever was drafted."""
        draws = max(draft.draws for draft in drafts)
        row_sequences, row_positions = [], []
        for draft, sequence, position in zip(drafts, sequences, positions, strict=True):
            row_sequences += [sequence] * (1 + len(draft))
            row_positions.append(position)
            if len(draft):
                row_positions += [position + depth for depth in draft.depths]
        numbers = uniform(self.seed, torch.tensor(row_sequences), torch.tensor(row_positions), draws)
        return numbers.to(self.head.weight.device)
