"""Where the bytes of an update lie: arithmetic alone, from what `probe` has measured of a model (docs/replay.md)."""

from dataclasses import dataclass, fields

from regrow.replay.schedule import path_capacity


@dataclass(frozen=True)
class Curve:
    """Straight from each measured point (n, y) to the next, n ascending, and on at either end; one point alone lies on
    a line through the origin."""

    points: tuple

    @classmethod
    def through(cls, measured):
        """measured: {n: y}."""
        return cls(tuple(sorted(measured.items())))

    def at(self, n):
        pairs = list(zip(self.points, self.points[1:], strict=False)) or [((0, 0), self.points[0])]
        (n1, y1), (n2, y2) = next((pair for pair in pairs if n <= pair[1][0]), pairs[-1])
        return max(0, round(y1 + (y2 - y1) * (n - n1) / (n2 - n1)))


@dataclass(frozen=True)
class LayerCosts:
    """Bytes of one layer. kv, kv_gradients: a token's; forward_key, backward_key: what a key of the path adds to the
    workspace of one call, up to `window` of them."""

    kv: int
    kv_gradients: int
    forward_key: float
    backward_key: float
    window: int | None

    def keys(self, depth):
        return depth if self.window is None else min(depth, self.window - 1)


@dataclass(frozen=True)
class HeadCosts:
    """Bytes of log-probs by the rows of a segment: `curve` while all logits are there at once, which are `row` bytes
    each for the first `chunk_rows`; `held` of it stay until the body is differentiated."""

    curve: Curve
    row: int
    chunk_rows: int
    held: int

    def peak(self, rows):
        return max(0, self.curve.at(rows) - self.row * max(0, rows - self.chunk_rows)) if rows else 0

    def left(self, rows):
        return self.held if rows else 0


@dataclass(frozen=True)
class ModelCosts:
    """Bytes that a model's runs take by tokens of a segment, beyond weights, gradients and path.

    saved: live between forward and backward; body: the peak of both; forward: the peak without autograd, which leaves
    hidden, the last hidden states. weights: of parameters and buffers; result: of a packed token.
    """

    saved: Curve
    body: Curve
    forward: Curve
    hidden: Curve
    layers: tuple  # of LayerCosts, in the order in which they run
    head: HeadCosts
    weights: int
    result: int

    def run(self, segment, rows):
        """The lines `activations`, `logits` and `workspace` of a `Ledger`, for a segment under autograd."""
        saved = self.saved.at(segment.size)
        # When a layer's keys are read, the activations of those above it have gone.
        gone = [saved * above / len(self.layers) for above in reversed(range(len(self.layers)))]
        keys = [layer.backward_key * layer.keys(segment.depth) for layer in self.layers]
        deep = max((more - less for more, less in zip(keys, gone, strict=True)), default=0)
        workspace = self.body.at(segment.size) - saved + max(0, round(deep)) + self.head.left(rows)
        return dict(activations=saved, logits=self.head.peak(rows), workspace=workspace)

    def run_values(self, segment, rows):
        """The same lines for a segment without autograd."""
        deep = max((layer.forward_key * layer.keys(segment.depth) for layer in self.layers), default=0)
        left = self.hidden.at(segment.size)
        workspace = self.forward.at(segment.size) - left + round(deep)
        return dict(activations=left, logits=self.head.peak(rows), workspace=workspace)


@dataclass(frozen=True)
class Ledger:
    """Bytes at the moment when most are live. weights are there before the call; the others are what the call adds.

    activations: what a segment's forward keeps for its backward; logits: of the log-probs' backward, the head's weight
    gradient included; workspace: what a layer's backward needs besides. Logits and workspace are never there together.
    Of a pass for values alone, activations are the last hidden states, logits and workspace those of forwards.
    """

    weights: int
    gradients: int
    kept_gradients: int
    path_kv: int
    path_kv_gradients: int
    activations: int
    logits: int
    workspace: int
    results: int

    @property
    def total(self):
        """Beyond what is live at the call: gradients that are set aside were."""
        fixed = self.gradients + self.path_kv + self.path_kv_gradients + self.results
        return fixed + self.activations + max(self.logits, self.workspace)

    def rows(self):
        """(name, bytes) of every line."""
        return [(field.name.replace("_", " "), getattr(self, field.name)) for field in fields(self)]


def predict(costs, segments, scored_rows, num_tokens, *, gradients=None, exact=True):
    """The `Ledger` of an update over `segments` of a tree of `num_tokens`, or of a pass for values alone.

    scored_rows: how many rows of each segment meet the head; gradients: (bytes of parameters' gradients that are made
    anew, bytes of those set aside), or None for values alone.
    """
    capacity = path_capacity(segments)
    made, aside = gradients or (0, 0)
    path_gradients = capacity * sum(layer.kv_gradients for layer in costs.layers) if gradients and exact else 0
    always = dict(
        weights=costs.weights,
        kept_gradients=aside,
        path_kv=capacity * sum(layer.kv for layer in costs.layers),
        results=num_tokens * costs.result,
    )
    everything = dict(always, gradients=made, path_kv_gradients=path_gradients)
    runs = list(zip(segments, scored_rows, strict=True))
    if gradients is None:
        moments = [dict(everything, **costs.run_values(*run)) for run in runs]
    else:
        taken = [costs.run(*run) for run in (runs[::-1] if exact else runs) if exact or run[1]]
        # While the first segment's activations go, gradients of parameters and path come into being.
        moments = [dict(always, gradients=0, path_kv_gradients=0, **run) for run in taken[:1]]
        moments += [dict(everything, **dict(run, activations=0, logits=0)) for run in taken[:1]]
        moments += [dict(everything, **run) for run in taken[1:]]
        if not exact:
            moments += [dict(everything, **costs.run_values(*run)) for run in runs if not run[1]]
    nothing = dict(everything, activations=0, logits=0, workspace=0)
    return max((Ledger(**moment) for moment in [nothing, *moments]), key=lambda ledger: ledger.total)
