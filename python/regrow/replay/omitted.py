"""How much of the gradient is dropped where a prefix is detached, as LongStraw does, which does not say."""

import re
from dataclasses import dataclass

import torch

from regrow.replay.gradients import Gradients
from regrow.replay.update import backward


@dataclass(frozen=True)
class Omitted:
    """The gradient of one family of parameters, as one vector; L2 norms. omitted: of exact - detached.

    cosine: between exact and detached, nan where either is zero.
    """

    family: str
    num_parameters: int
    exact: float
    detached: float
    omitted: float
    cosine: float

    @property
    def relative(self):
        """The omitted part over the whole."""
        return self.omitted / self.exact if self.exact else float("nan")


def kind_of(name):
    """The family of a parameter by default: its name without the numbers of layers and experts.

    >>> kind_of("model.layers.3.self_attn.q_proj.weight")
    'model.layers.*.self_attn.q_proj.weight'
    """
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def omitted_gradient(model, tree, objective, *, family=kind_of, **options):
    """Computes the exact gradient and the detached one, and compares them; `.grad` stays as it is.

    family(name): what parameters are compared as one vector. The other arguments are those of `regrow.replay.backward`
    without `prefix_grad` and `atomic`. Returns a list of `Omitted`, a family each in order of the parameters, the last
    of them "all". Takes two updates' time and memory for two more copies of the gradient. Raises as `backward` does.

        for part in regrow.replay.omitted_gradient(model, tree, objective):
            print(part.family, part.relative, part.cosine)
    """
    with Gradients(model, several=False) as kept:
        kept.discard()
        backward(model, tree, objective, prefix_grad="exact", **options)
        exact = take(model)
        backward(model, tree, objective, prefix_grad="detached", **options)
        detached = take(model)
    families = {}
    for name in exact:
        families.setdefault(family(name), []).append(name)
    families["all"] = list(exact)
    return [compare(kind, names, exact, detached) for kind, names in families.items()]


def take(model):
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            gradients[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = None
    return gradients


def compare(kind, names, exact, detached):
    sums = torch.zeros(4, dtype=torch.float64, device="cpu")
    for name in names:
        whole, part = exact[name].flatten().double(), detached[name].flatten().double()
        rest = whole - part
        sums += torch.stack([whole @ whole, part @ part, rest @ rest, whole @ part]).cpu()
    norms = [value**0.5 for value in sums[:3].tolist()]
    cosine = sums[3].item() / (norms[0] * norms[1]) if norms[0] * norms[1] else float("nan")
    return Omitted(kind, sum(exact[name].numel() for name in names), *norms, cosine)
