"""Which model is running on which tree: so that a tree which its attention never sees is noticed."""

import threading
from contextlib import contextmanager

import torch

from regrow.models.mask import LazyMask


class Running:
    """torch.compile traces neither a ContextVar nor a threading.local, so threads share this one.

    Where their calls overlap, one may end the other's early, which is then not checked; none is refused for another's.
    """

    call = None  # the innermost


class Call:
    def __init__(self, model, outer):
        self.model = model
        self.outer = outer  # the call inside which this one is, or None
        self.reached = False  # whether any layer's attention was given a tree
        self.thread = None if torch.compiler.is_compiling() else threading.get_ident()


RUNNING = Running()


def enter(model):
    leave(model)  # what a KeyboardInterrupt, after which modules run no hooks, left behind
    RUNNING.call = Call(model, RUNNING.call)


def leave(model):
    """Ends the call of `model`, and any inside it; returns it, or None if there is none."""
    call = RUNNING.call
    while call is not None and call.model is not model:
        call = call.outer
    if call is not None:
        RUNNING.call = call.outer
    return call


def finish(model):
    """Ends the call of `model`, which has returned. Raises ValueError if its tree reached no layer's attention."""
    call = leave(model)
    if call is None:
        return
    if call.outer is None and not call.reached:
        raise ValueError(f"{type(model).__name__} {DROPPED}: no layer called regrow's attention with it")


@contextmanager
def running(model):
    enter(model)
    try:
        yield
        finish(model)
    finally:
        leave(model)


DROPPED = "does not pass tree= on to its attention, which would mix branches"


def reach():
    call = RUNNING.call
    while call is not None:
        call.reached = True
        call = call.outer


def refuse_dropped_tree(module, mask):
    """Raises ValueError if `module`, an attention layer that was given no tree, is part of a model that runs on one.

    Layers that look both ways, as those of an image encoder beside the decoder, need none.
    """
    call = RUNNING.call
    if call is None or not (getattr(module, "is_causal", True) or (isinstance(mask, LazyMask) and mask.causal)):
        return
    while call is not None:
        if is_inside(module, call):
            raise ValueError(f"{type(call.model).__name__} {DROPPED}: {type(module).__name__} was called without it")
        call = call.outer


def is_inside(module, call):
    if torch.compiler.is_compiling():
        return True  # modules are not told apart while they are traced
    return call.thread in (None, threading.get_ident()) and any(part is module for part in call.model.modules())
