import torch

import regrow

INDEX = torch.tensor([4, 0, 4, 2])


def test_functions_and_ops_share_one_formula(isa):
    src = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    for gather in (regrow.replay_gather, regrow.ReplayGather.apply, torch.ops.regrow.replay_gather):
        assert torch.autograd.gradcheck(lambda x, f=gather: f(x, INDEX), src)
        assert torch.autograd.gradgradcheck(lambda x, f=gather: f(x, INDEX).sin(), src)
    for scatter in (regrow.replay_scatter, regrow.ReplayScatter.apply, torch.ops.regrow.replay_scatter):
        assert torch.autograd.gradcheck(lambda x, f=scatter: f(x, INDEX, 5), rows)
        assert torch.autograd.gradgradcheck(lambda x, f=scatter: f(x, INDEX, 5).sin(), rows)


def test_gradient_of_a_sum_is_an_expanded_tensor():
    src = torch.randn(5, 40, requires_grad=True)
    regrow.replay_gather(src, INDEX).sum().backward()
    assert torch.equal(src.grad, torch.bincount(INDEX, minlength=5).float()[:, None].expand(5, 40))
