import pytest
import torch

import regrow

ROW, TOKEN = torch.tensor([4, 0, 4, 4, 1]), torch.tensor([10, 3, 3, 10, 0])  # rows 2 and 3 predict nothing
PARENT, TOKENS = torch.tensor([-1, 0, 1, 1, 0]), torch.tensor([1, 2, 3, 3, 10])


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    shapes = (5, 8), (11, 8)
    return [torch.randn(*s, dtype=torch.float64, generator=generator, requires_grad=True) for s in shapes]


FORMS = {
    "row op": (torch.ops.regrow.row_logprobs, ROW, TOKEN),
    "row function": (regrow.RowLogprobs.apply, ROW, TOKEN),
    "tree op": (torch.ops.regrow.tree_logprobs, PARENT, TOKENS),
    "tree function": (regrow.TreeLogprobs.apply, PARENT, TOKENS),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("temperature, softcap", [(1.0, None), (0.7, 3.0)])
def test_gradcheck(isa, inputs, form, temperature, softcap):
    function, *targets = form
    assert torch.autograd.gradcheck(lambda h, w: function(h, w, *targets, temperature, softcap), inputs)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_each_gradient_alone(inputs, form):
    function, *targets = form
    for chosen in range(2):
        alone = [x.detach().requires_grad_(i == chosen) for i, x in enumerate(inputs)]
        for output in range(2):  # the other output's gradient is None
            both = torch.autograd.grad(function(*inputs, *targets, 1.0, None)[output].sum(), inputs)
            one = torch.autograd.grad(function(*alone, *targets, 1.0, None)[output].sum(), alone[chosen])
            torch.testing.assert_close(one[0], both[chosen], rtol=1e-14, atol=1e-14)


def test_gradients_of_a_fork_add():
    hidden, weight = torch.randn(1, 6, dtype=torch.float64), torch.randn(9, 6, dtype=torch.float64)

    def gradient(tokens):
        leaf = hidden.clone().requires_grad_()
        rows = torch.zeros(len(tokens), dtype=torch.int64)
        regrow.row_logprobs(leaf, weight, rows, torch.tensor(tokens))[0].sum().backward()
        return leaf.grad

    torch.testing.assert_close(gradient([2, 7, 2]), 2 * gradient([2]) + gradient([7]))
