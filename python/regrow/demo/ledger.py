"""The memory ledger of an update: what the replay engine predicts, and what the allocator saw."""

import copy
from dataclasses import dataclass

from regrow import replay
from regrow.live_bytes import measure_bytes, silent_stderr

BUFFERS = ("gradients", "path_kv", "path_kv_gradients")  # the engine's stats have their sizes
REST = ("activations", "logits", "workspace")


@dataclass(frozen=True)
class Entry:
    """Bytes of one line of the ledger; measured: None where only the sum with other lines can be."""

    predicted: int
    measured: int | None


def measure_ledger(model, batch, chunk_tokens=None):
    """Predicts one update's memory, runs it, and returns {line: `Entry`}; `.grad` is None before and after.

    No profiler may be running on the CPU. chunk_tokens: None: one pass.
    """
    model.zero_grad(set_to_none=True)
    tree, objective = batch.tree(model.device), batch.objective(model.device)
    options = dict(chunk_tokens=chunk_tokens or tree.num_tokens)
    with silent_stderr():  # the allocator remarks on what it frees without having counted it
        predicted = replay.predict(model, tree, objective, **options)
        measured = measure_bytes(lambda: replay.backward(model, tree, objective, **options), model.device)
    model.zero_grad(set_to_none=True)
    weights = measure_bytes(lambda: copy.deepcopy(model), model.device).end
    return entries(predicted, weights, measured.peak, measured.result.stats)


def entries(predicted, weights, peak, stats):
    """{line: `Entry`} at the moment that is predicted to need most.

    Buffers that are not there yet at that moment are 0 on both sides. What else is live then has no measure of its own:
    "rest" is the measured peak less the buffers, against activations and the larger of logits and workspace, which are
    never there together. So an error anywhere shows in the rest.
    """
    found = {"weights": Entry(predicted.weights, weights)}
    for name, size in zip(BUFFERS, (stats.gradient_bytes, stats.kv_bytes, stats.kv_gradient_bytes), strict=True):
        expected = getattr(predicted, name)
        found[name] = Entry(expected, size if expected else 0)
    rest = predicted.total - sum(found[name].predicted for name in BUFFERS)
    found |= {name: Entry(getattr(predicted, name), None) for name in REST}
    found["rest"] = Entry(rest, peak - sum(found[name].measured for name in BUFFERS))
    found["total"] = Entry(predicted.total, peak)
    return found
