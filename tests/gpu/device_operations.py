"""The ops of regrow as things to run again, with other values: for streams, graphs, repeats, tools."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

import regrow
from device_cases import plan_of
from regrow.logit_chunks import Targets

BF16 = torch.bfloat16


@dataclass
class Operation:
    """`run()` reads `values`, whose contents may change, and returns a tuple of new tensors."""

    name: str
    values: list
    run: Callable
    waits: bool = False  # for the device, by contract: its arguments are checked on the host

    def refill(self, seed):
        """Other values, the same for the same seed on every device."""
        generator = torch.Generator().manual_seed(seed)
        for tensor in self.values:
            tensor.copy_(torch.randn(tensor.shape, generator=generator).to(tensor.dtype))
        return self


def operations(device, tokens=2000, width=256, vocabulary=4099):
    """All of them, filled, about `tokens` rows each: split and not, of every dtype that has a kernel of its own."""
    made = [*_attention(device, tokens), *_merges(device, tokens)]
    made += [*_rows(device, tokens, width), *_logits(device, tokens, vocabulary)]
    return [operation.refill(0) for operation in made]


def _attention(device, tokens):
    tree = regrow.PrefixTree.from_nodes([-1] + [0] * 4, [tokens] + [tokens // 8 + 1] * 4).to(device)
    last = tree.gather_index[tree.cu_seqlens[1:] - 1].sort().values
    everything = {"window": tokens, "softcap": 5.0}
    for name, dtype, dims, queries, more in (
        ("attention, bf16", BF16, (128, 128), None, {}),
        ("attention, fp16, options", torch.float16, (64, 64), None, everything),
        ("attention, wide heads", BF16, (256, 256), None, {}),
        ("attention, narrow values", BF16, (192, 128), None, {}),
        ("attention, decoding", BF16, (128, 128), last, {}),
        ("attention, decoding, partial", torch.float16, (96, 96), last, {"partial": True}),
    ):
        num_queries = tree.num_tokens if queries is None else queries.size(0)
        shapes = ((num_queries, 8, dims[0]), (tree.num_tokens, 2, dims[0]), (tree.num_tokens, 2, dims[1]))
        values = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        if not more.get("partial"):
            values.append(torch.empty(8, device=device))
        # Given as is: graph capture makes no plan, and a cache of plans is beside the point here.
        plan = plan_of(tree, *values[:3], window=more.get("window"), query_index=queries)

        def run(values=values, queries=queries, plan=plan, more=more):
            q, k, v, *sinks = values
            options = {"query_index": queries, "plan": plan, "return_lse": True, **more}
            return regrow.tree_attention(q, k, v, tree, sinks=sinks[0] if sinks else None, **options)

        yield Operation(name, values, run)
        wide = torch.float32 if more.get("partial") else dtype
        numbers = [
            torch.empty(num_queries, 8, dims[1], dtype=wide, device=device),
            torch.empty(8, num_queries, device=device),
        ]
        options = (dims[0] ** -0.5, more.get("window"), more.get("softcap"))
        call = _Attention(tree, plan, queries, options, values, numbers)
        yield Operation(name.replace("attention", "attention gradients"), [*values, *numbers], call.gradients)
        yield Operation(name.replace("attention", "attention accumulators"), [*values, *numbers], call.accumulated)


@dataclass
class _Attention:
    """The ops under regrow.tree_attention, forward and backward."""

    tree: regrow.PrefixTree
    plan: torch.Tensor
    queries: torch.Tensor | None
    options: tuple  # scale, window, softcap
    values: list  # q, k, v, and sinks unless the result is partial
    numbers: list  # dout, dlse

    def arguments(self):
        q, k, v, *sinks = self.values
        sinks = sinks[0] if sinks else None
        places = (self.tree.subtree_end, self.tree.position_ids, self.plan, self.queries, 0, 0, *self.options, sinks)
        out, lse = torch.ops.regrow.tree_attention_fwd(q, k, v, *places, sinks is None)
        return *self.numbers, q, k, v, out, lse, *places

    def gradients(self):
        return tuple(x for x in torch.ops.regrow.tree_attention_bwd(*self.arguments()) if x.numel())

    def accumulated(self):
        """Beside gradients, which others have put there."""
        sums = tuple(torch.ones(x.shape, device=x.device) for x in self.values[:3])
        dsinks = torch.ops.regrow.tree_attention_bwd_accum(*self.arguments(), *sums)
        return (*sums, dsinks) if dsinks.numel() else sums


def _merges(device, tokens):
    for dtype, width in ((torch.float32, 64), (torch.float64, 7), (torch.float32, 33)):
        values = [
            torch.empty(shape, dtype=dtype, device=device) for shape in ((3, tokens, 4, width), (3, 4, tokens), (4,))
        ]
        yield Operation(f"lse_merge, {dtype}, {width}", values, lambda values=values: regrow.lse_merge(*values))
        gradients_of = [torch.empty(shape, dtype=dtype, device=device) for shape in ((tokens, 4, width), (4, tokens))]

        def gradients(values=values, gradients_of=gradients_of):
            return torch.ops.regrow.lse_merge_bwd(*gradients_of, *values, *regrow.lse_merge(*values))

        yield Operation(f"lse_merge_bwd, {dtype}, {width}", [*values, *gradients_of], gradients)


def _rows(device, tokens, width):
    index = torch.randint(tokens // 2, (tokens,), generator=torch.Generator().manual_seed(1)).to(device)
    # Rows of 16 bytes, of 4, of single ones; sums in every width.
    for dtype, columns in ((BF16, width), (torch.float32, width - 1), (torch.float16, width - 1), (torch.float64, 3)):
        src = torch.empty(tokens, columns, dtype=dtype, device=device)

        def gather(src=src):
            return (regrow.replay_gather(src, index),)

        def scatter(src=src):
            return (regrow.replay_scatter(src, index, tokens // 2),)

        yield Operation(f"replay_gather, {dtype}, {columns}", [src], gather)
        yield Operation(f"replay_scatter, {dtype}, {columns}", [src], scatter)

        def into(src=src):
            """Into memory of the caller, which a graph may keep."""
            gathered, summed = torch.empty_like(src), torch.empty_like(src[: tokens // 2])
            regrow.replay_gather(src, index, out=gathered)
            regrow.replay_scatter(src, index, tokens // 2, out=summed)
            return gathered, summed

        yield Operation(f"replay out=, {dtype}, {columns}", [src], into)


def _logits(device, tokens, vocabulary):
    generator, rows = torch.Generator().manual_seed(2), tokens // 8
    row = torch.randint(rows, (tokens,), generator=generator).to(device)
    token = torch.randint(vocabulary, (tokens,), generator=generator).to(device)
    for dtype, columns, softcap in ((BF16, vocabulary // 8 * 8, None), (torch.float32, vocabulary, 5.0)):
        logits = torch.empty(rows, columns, dtype=dtype, device=device)
        column = token.clamp(max=columns - 1)

        def stats(logits=logits, column=column, softcap=softcap):
            lse, entropy = torch.ops.regrow.logits_row_stats(logits, 0.7, softcap)
            return lse, entropy, torch.ops.regrow.logits_pick(logits, lse, row, column, 0.7, softcap)

        yield Operation(f"logits, {dtype}, {columns}", [logits], stats)
        targets = Targets.sort(None, rows, row, column)
        dlogp, dentropy = torch.empty(tokens, device=device), torch.empty(rows, device=device)

        def gradient(logits=logits, targets=targets, numbers=(dlogp, dentropy), softcap=softcap):
            lse, entropy = torch.ops.regrow.logits_row_stats(logits, 0.7, softcap)
            gradient = logits.clone()
            torch.ops.regrow.logits_row_grad_(
                gradient, lse, entropy, targets.row_start, targets.token, *numbers, 0.7, softcap
            )
            return (gradient,)

        yield Operation(f"logits_row_grad_, {dtype}, {columns}", [logits, dlogp, dentropy], gradient)

    values = [torch.empty(shape, dtype=BF16, device=device) for shape in ((rows, 64), (vocabulary, 64))]

    def logprobs():
        return regrow.row_logprobs(*values, row, token)

    yield Operation("row_logprobs", values, logprobs, waits=True)
    numbers = [torch.empty(size, device=device) for size in (tokens, rows)]

    def gradients():
        return torch.ops.regrow.row_logprobs_bwd(*numbers, *values, row, token, 1.0, None, True, True)

    yield Operation("row_logprobs_bwd", [*values, *numbers], gradients, waits=True)
