"""Where the gradients of one update collect, so that `.grad` changes once, at the end, or not at all."""

import sys

import torch

WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


class Gradients:
    """Collects what several backward passes add to `.grad`; a context manager.

    with Gradients(model, several=True):
        ...  # backward passes
    # .grad has their sum added; after an exception it is what it was

    several: whether more than one backward pass comes; 16-bit gradients are then summed in float32 and rounded once, as
    one backward pass would. atomic: sets gradients that are there aside until the end, at the cost of a second copy;
    without, an error leaves in `.grad` what has been added so far (16-bit ones are set aside in any case).
    """

    def __init__(self, model, *, several, atomic=True):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        refuse_hooks(model)
        self.several, self.atomic = several, atomic
        self.before = {}  # parameter -> the .grad that is set aside
        self.sums = {}  # parameter -> float32 sum of 16-bit gradients
        self.handles = []
        self.keep = True

    def discard(self):
        """Lets `.grad` be at the end what it was."""
        self.keep = False

    def __enter__(self):
        for parameter in self.parameters:
            wide = self.several and parameter.dtype in WIDE
            if (self.atomic or wide) and parameter.grad is not None:
                self.before[parameter], parameter.grad = parameter.grad, None
            if wide:
                self.handles.append(parameter.register_post_accumulate_grad_hook(self.widen))
        return self

    @torch.no_grad()
    def widen(self, parameter):
        gradient, parameter.grad = parameter.grad, None
        if parameter in self.sums:
            self.sums[parameter].add_(gradient)
        else:
            self.sums[parameter] = gradient.to(WIDE[parameter.dtype])

    @torch.no_grad()
    def __exit__(self, error, *_):
        for handle in self.handles:
            handle.remove()
        for parameter in self.parameters:
            total = self.sums.pop(parameter, None)
            before = self.before.pop(parameter, None)
            if error is not None or not self.keep:
                if self.atomic or before is not None:
                    parameter.grad = before
                continue
            if total is not None:
                parameter.grad = total.to(parameter.dtype)
            if before is not None:
                parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)

    def num_bytes(self):
        """(bytes of the sums and gradients so far, bytes set aside)"""
        now = [*self.sums.values(), *(p.grad for p in self.parameters if p.grad is not None)]
        return sum(map(num_bytes, now)), sum(map(num_bytes, self.before.values()))


def num_bytes(gradient):
    parts = [gradient._indices(), gradient._values()] if gradient.is_sparse else [gradient]
    return sum(part.nbytes for part in parts)


def gradient_bytes(model, *, several, atomic):
    """(bytes of gradients that an update makes anew, bytes of those that it sets aside meanwhile)"""
    made = aside = 0
    for parameter in model.parameters():
        wide = several and parameter.dtype in WIDE
        if parameter.requires_grad and (parameter.grad is None or atomic or wide):
            made += parameter.numel() * (WIDE[parameter.dtype] if wide else parameter.dtype).itemsize
            aside += 0 if parameter.grad is None else parameter.grad.nbytes
    return made, aside


def is_sharded(module):
    fsdp = sys.modules.get("torch.distributed.fsdp")  # who shards has imported it
    return fsdp is not None and isinstance(module, (fsdp.FSDPModule, fsdp.FullyShardedDataParallel))


def refuse_hooks(model):
    """Raises ValueError for what would act after every segment's backward pass and not after the whole."""
    for module in model.modules():
        if isinstance(module, torch.nn.parallel.DistributedDataParallel) and module.require_backward_grad_sync:
            raise ValueError(
                "DistributedDataParallel would reduce gradients after every segment: call backward under "
                "model.no_sync() and reduce .grad afterwards"
            )
        if is_sharded(module):
            raise ValueError(
                f"{type(module).__name__} gathers and reduces in every segment, and ranks have different numbers of "
                "them: each would wait for the others; give every rank the whole model"
            )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
            raise ValueError(
                f"parameter {name} has a gradient hook, which would run after every segment and not once: remove it, "
                "and do its work on .grad after backward"
            )
