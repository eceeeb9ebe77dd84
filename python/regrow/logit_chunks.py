"""Log-probs and their gradients a chunk of rows at a time, so that no tensor of all logits exists.

The chunk's logits are made in the accumulation dtype, the row kernels reduce them or turn them into their gradient in
place, and the memory is used again. On the CPU the products are regrow's own: the same bits for any number of threads.
On CUDA they are torch's, summed in fp32 (at torch's own setting, should fp32 inputs be allowed to use TF32).
"""

from dataclasses import dataclass

import torch

from regrow.devices import same_device
from regrow.dtypes import accumulation_dtype

ops = torch.ops.regrow

# Enough rows for a full-speed product at vocabularies up to 256K, and small beside the weight. There these are 64 rows
# on the CPU and 512 on CUDA, where a chunk reads the whole weight in the time in which 200 of its rows are multiplied.
CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
# Of a small vocabulary: beyond it a chunk gains nothing.
MAX_CHUNK_ROWS = 1024


@dataclass
class Targets:
    """N targets sorted by row, then token, then place in the caller's list."""

    rows: torch.Tensor | None  # [R] the rows of hidden that are computed; None: all, in order
    num_rows: int
    order: torch.Tensor  # [N] the caller's place of each target
    row: torch.Tensor  # [N] in [0, R)
    token: torch.Tensor  # [N]
    row_start: torch.Tensor  # [R + 1]: row r owns the targets [row_start[r], row_start[r + 1])
    bounds: list[int]  # row_start, on the host

    @classmethod
    def sort(cls, rows, num_rows, row, token):
        order = torch.argsort(token, stable=True)
        order = order[torch.argsort(row[order], stable=True)]
        row = row[order]
        row_start = torch.searchsorted(row, torch.arange(num_rows + 1, device=row.device))
        return cls(rows, num_rows, order, row, token[order], row_start, row_start.tolist())

    def chunks(self, hidden, weight):
        """Yields (slice of rows, slice of targets, the rows' hidden states, their logits in memory used again)."""
        dtype = accumulation_dtype(hidden.dtype)
        chunk_rows = rows_per_chunk(weight)
        memory = hidden.new_empty(min(chunk_rows, self.num_rows), weight.size(0), dtype=dtype)
        for begin in range(0, self.num_rows, chunk_rows):
            rows = slice(begin, min(begin + chunk_rows, self.num_rows))
            chunk = hidden[rows] if self.rows is None else hidden[self.rows[rows]]
            logits = memory[: rows.stop - rows.start]
            ops.head_logits_out(chunk, weight, logits)
            yield rows, slice(self.bounds[rows.start], self.bounds[rows.stop]), chunk, logits


def rows_per_chunk(weight):
    """How many rows of logits are in memory at once."""
    row_bytes = weight.size(0) * accumulation_dtype(weight.dtype).itemsize
    return min(max(1, CHUNK_BYTES[weight.device.type] // max(1, row_bytes)), MAX_CHUNK_ROWS)


def chunked_forward(hidden, weight, targets, temperature, softcap):
    """logp [N] in sorted order, entropy [R]."""
    dtype = accumulation_dtype(hidden.dtype)
    logp = hidden.new_empty(targets.token.size(0), dtype=dtype)
    entropy = hidden.new_empty(targets.num_rows, dtype=dtype)
    for rows, span, _, logits in targets.chunks(hidden, weight):
        lse, entropy[rows] = ops.logits_row_stats(logits, temperature, softcap)
        row = targets.row[span] - rows.start
        logp[span] = ops.logits_pick(logits, lse, row, targets.token[span], temperature, softcap)
    return logp, entropy


def chunked_backward(dlogp, dentropy, hidden, weight, targets, temperature, softcap, need_hidden, need_weight):
    """dlogp [N] in sorted order, dentropy [R] or None -> dhidden [R,H] of the computed rows, dweight [V,H], or [0]."""
    dtype = accumulation_dtype(hidden.dtype)
    dhidden = hidden.new_empty((targets.num_rows, hidden.size(1)) if need_hidden else 0, dtype=dtype)
    dweight = torch.zeros_like(weight, dtype=dtype, memory_format=torch.contiguous_format) if need_weight else None
    for rows, span, chunk, logits in targets.chunks(hidden, weight):
        lse, entropy = ops.logits_row_stats(logits, temperature, softcap)
        row_start = targets.row_start[rows.start : rows.stop + 1] - span.start
        ops.logits_row_grad_(
            logits, lse, entropy, row_start, targets.token[span], dlogp[span],
            None if dentropy is None else dentropy[rows], temperature, softcap,
        )  # fmt: skip
        ops.head_logits_bwd(logits, chunk, weight, dhidden[rows] if need_hidden else None, dweight)
    return dhidden.to(hidden.dtype), dweight.to(weight.dtype) if need_weight else weight.new_empty(0)


@torch.library.impl("regrow::add_matmul_", "default")
def _add_matmul(out, a, b):
    torch.ops.aten.addmm.dtype_out(out, a, b, out.dtype, out=out)


@torch.library.register_fake("regrow::add_matmul_")
def _(out, a, b):
    same_device(out=out, a=a, b=b)


@torch.library.register_fake("regrow::head_logits_out")
def _(hidden, weight, out, few_rows=False):
    same_device(hidden=hidden, weight=weight, out=out)


@torch.library.register_fake("regrow::head_logits_bwd")
def _(dlogits, hidden, weight, dhidden, dweight):
    same_device(hidden=hidden, weight=weight, dlogits=dlogits, dhidden=dhidden, dweight=dweight)
