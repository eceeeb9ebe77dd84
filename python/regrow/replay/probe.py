"""Measures what a model's runs take in memory, on short pieces of the tree at hand (docs/replay.md, the ledger)."""

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import torch

import regrow
from regrow.dtypes import accumulation_dtype
from regrow.live_bytes import measure_bytes, silent_stderr
from regrow.logit_chunks import rows_per_chunk
from regrow.replay.gradients import Gradients
from regrow.replay.ledger import Curve, HeadCosts, LayerCosts, ModelCosts
from regrow.replay.path import Path
from regrow.replay.run import Run
from regrow.replay.schedule import Segment
from regrow.tree import PrefixTree

LONG = 512  # tokens of the longer of two pieces that are measured; the other has a quarter of them
SHORT = LONG // 4
PATH = 2048  # keys of the path against which one layer's attention is measured


@dataclass(frozen=True)
class LayerCall:
    """One layer's call of attention: shapes [heads, dim] and dtype of q, k and v, and the options of `Run.attend`."""

    q: tuple
    k: tuple
    v: tuple
    dtype: torch.dtype
    options: tuple  # (name, value)
    sinks: bool
    trained: bool  # whether k or v requires a gradient


class Listener(Run):
    """A run that notes what each layer asks of attention."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.calls = []

    def attend(self, layer, q, k, v, *, sinks=None, **options):
        shapes = (tuple(x.shape[1:]) for x in (q, k, v))
        trained = k.requires_grad or v.requires_grad
        self.calls.append(LayerCall(*shapes, k.dtype, tuple(options.items()), sinks is not None, trained))
        return super().attend(layer, q, k, v, sinks=sinks, **options)


_costs = WeakKeyDictionary()  # model -> {what it was measured for: ModelCosts}


def probe(model, adapted, tree, *, gradients=True, exact=True):
    """The `ModelCosts` of a model for trees like this one; `.grad` stays as it is.

    gradients: whether any are wanted, or values alone, for which nothing is back-propagated; exact: whether gradients
    of the path are collected. Runs three pieces of at most `LONG` tokens, and one layer of each kind against `PATH`
    keys; what it finds is kept for as long as the model lives, and found anew where anything differs on which it
    depends. Raises ValueError as `Gradients` does, and RuntimeError on the CPU while a profiler is running.
    """
    found_for = circumstances(model, tree, gradients, exact)
    kept = _costs.setdefault(model, {})
    if found_for not in kept:
        with silent_stderr():  # torch's allocator remarks on what it frees without having counted it
            kept[found_for] = measure(model, adapted, tree, gradients, exact)
    return kept[found_for]


def circumstances(model, tree, gradients, exact):
    """All on which a model's costs depend."""
    parameters = tuple((name, p.dtype, p.shape, p.requires_grad) for name, p in model.named_parameters())
    modes = tuple((m.training, getattr(m, "gradient_checkpointing", False)) for m in model.modules())
    device = tree.subtree_end.device
    autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
    return parameters, modes, autocast, device, torch.get_num_threads(), gradients, exact, len(beginning(tree))


@contextmanager
def autograd_of(model, gradients):
    """Autograd as a pass for values has it, or as an update has it, whose gradients then leave no trace."""
    if not gradients:
        with torch.no_grad():
            yield
        return
    with Gradients(model, several=False) as kept, torch.enable_grad():
        kept.discard()
        yield


def measure(model, adapted, tree, gradients, exact):
    device = tree.subtree_end.device
    tokens = tree.tokens[beginning(tree)]
    sizes = sorted({max(1, len(tokens) // 4), len(tokens)})
    weight = adapted.replay_head().weight
    with autograd_of(model, gradients):
        saved, body = {}, {}
        for size in (sizes[0], *sizes):  # the first brings gradients of the parameters into being
            saved[size], body[size], calls = measure_run(adapted, chain(tokens[:size]), exact)
        # The gradient of a head tied to the embedding waits for the embedding's.
        held = weight.nbytes if weight.is_leaf and weight.grad is not None else 0
        rows = sorted({min(size, rows_per_chunk(weight)) for size in (1, SHORT, LONG)})
        head = {count: measure_head(adapted.replay_head(), count) for count in (rows[0], *rows)}
    passes = {size: measure_values(adapted, chain(tokens[:size])) for size in sizes}

    row = weight.size(0) * accumulation_dtype(weight.dtype).itemsize
    layers = {call: layer_costs(call, exact, device) for call in set(calls)}
    return ModelCosts(
        saved=Curve.through(saved),
        body=Curve.through(body),
        forward=Curve.through({size: measured.peak for size, measured in passes.items()}),
        hidden=Curve.through({size: measured.end for size, measured in passes.items()}),
        layers=tuple(layers[call] for call in calls),
        head=HeadCosts(Curve.through(head), row, rows_per_chunk(weight), held),
        weights=sum(x.nbytes for x in {*model.parameters(), *model.buffers()}),
        result=2 * accumulation_dtype(weight.dtype).itemsize,
    )


def beginning(tree):
    """Axis positions of the first tokens, at most `LONG`, of the longest sequence."""
    longest = int(tree.cu_seqlens.diff().argmax())
    start, stop = tree.cu_seqlens[longest : longest + 2].tolist()
    return tree.gather_index[start : min(stop, start + LONG)]


def chain(tokens):
    return PrefixTree.from_nodes([-1], [len(tokens)], tokens.cpu()).to(tokens.device)


def whole(tree):
    return Segment(0, tree.num_tokens, 0, -1, inner=False)


def measure_run(adapted, tree, exact):
    """(bytes live between forward and backward, at the peak of both, the layers' calls); in the caller's grad mode."""
    path = Path(tree.num_tokens, exact)
    with torch.no_grad():
        adapted.replay_hidden(Run(path, tree, whole(tree)))  # brings the path's buffers into being
    listener, device = Listener(path, tree, whole(tree)), tree.subtree_end.device
    between = measure_bytes(lambda: adapted.replay_hidden(listener), device)
    listener.finish()
    hidden, calls = between.result, list(listener.calls)  # a checkpoint's second forward is no layer more
    if not hidden.requires_grad:
        return between.end, between.peak, calls
    for slots in path.layers.values():
        slots.gradients()
    gradient = torch.zeros_like(hidden)
    behind = measure_bytes(lambda: torch.autograd.backward(hidden, gradient), device)
    return between.end, max(between.peak, between.end + gradient.nbytes + behind.peak), calls


def measure_values(adapted, tree):
    """The `Measured` of a forward without autograd, which leaves the last hidden states."""
    path = Path(tree.num_tokens, exact=False)
    with torch.no_grad():
        adapted.replay_hidden(Run(path, tree, whole(tree)))
        return measure_bytes(lambda: adapted.replay_hidden(Run(path, tree, whole(tree))), tree.subtree_end.device)


def layer_costs(call, exact, device):
    """The `LayerCosts` of one layer: its attention alone, without a path and with one."""
    none, some = (measure_attention(call, depth, exact, device) for depth in (0, PATH))
    options = dict(call.options)
    elements = call.k[0] * (call.k[1] + call.v[1])
    keys = PATH if options.get("window") is None else min(PATH, options["window"] - 1)
    return LayerCosts(
        kv=elements * call.dtype.itemsize,
        kv_gradients=elements * accumulation_dtype(call.dtype).itemsize if call.trained else 0,
        forward_key=max(0, some[0] - none[0]) / max(1, keys),
        backward_key=max(0, some[1] - none[1]) / max(1, keys),
        window=options.get("window"),
    )


def measure_attention(call, depth, exact, device):
    """Peak bytes of one call of attention of `SHORT` tokens against a path: forward alone, then with its backward."""
    tree = chain(torch.zeros(depth + SHORT, dtype=torch.int64, device=device))
    path = Path(tree.num_tokens, exact)
    segment = Segment(depth, tree.num_tokens, depth, -1, inner=False)
    q, k, v = (torch.zeros(SHORT, *shape, dtype=call.dtype, device=device) for shape in (call.q, call.k, call.v))
    sinks = torch.zeros(call.q[0], device=device) if call.sinks else None
    slots = path.slots(None, k, v)
    slots.keys.zero_(), slots.values.zero_()
    if call.trained and exact:
        slots.gradients()
    attend = partial(Run.attend, layer=None, sinks=sinks, **dict(call.options))
    with torch.no_grad():
        forward = measure_bytes(lambda: attend(Run(path, tree, segment), q=q, k=k, v=v), device).peak
    with torch.enable_grad():
        q.requires_grad_(), k.requires_grad_(call.trained), v.requires_grad_(call.trained)
        out = attend(Run(path, tree, segment), q=q, k=k, v=v)
        gradient = torch.zeros_like(out)
        return forward, measure_bytes(lambda: torch.autograd.backward(out, gradient), device).peak


def measure_head(head, num_rows):
    """Peak bytes of the log-probs of so many rows, forward and, if the caller's grad mode has one, backward."""
    weight, device = head.weight, head.weight.device
    rows = torch.arange(num_rows, device=device)
    hidden = torch.zeros(num_rows, weight.size(1), dtype=weight.dtype, device=device, requires_grad=True)

    def forward():
        logp, _ = regrow.row_logprobs(
            regrow.replay_gather(hidden, rows), weight, rows, torch.zeros_like(rows), **head.options(1.0)
        )
        return logp

    between = measure_bytes(forward, device)
    if not between.result.requires_grad:
        return between.peak
    gradient = torch.zeros_like(between.result)
    behind = measure_bytes(lambda: torch.autograd.backward(between.result, gradient), device)
    return max(between.peak, between.end + behind.peak)
