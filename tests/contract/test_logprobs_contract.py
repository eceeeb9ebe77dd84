"""What the log-prob ops promise besides numbers: errors, registration, compilation."""

from types import SimpleNamespace

import pytest
import torch

import regrow

ops = torch.ops.regrow
HIDDEN, WEIGHT = torch.randn(5, 8), torch.randn(11, 8)
ROW, TOKEN = torch.tensor([4, 0, 4]), torch.tensor([10, 3, 3])
TREE = SimpleNamespace(parent_index=torch.tensor([-1, 0, 1, 1, 0]), tokens=torch.tensor([1, 2, 3, 4, 10]), num_tokens=5)


def raises(match, function, *arguments, **options):
    with pytest.raises(ValueError, match=match):
        function(*arguments, **options)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_temperature_and_softcap(value):
    for name in ("temperature", "softcap"):
        message = rf"{name} is {value}, must be positive and finite"
        raises(message, regrow.row_logprobs, HIDDEN, WEIGHT, ROW, TOKEN, **{name: value})
        raises(message, regrow.tree_logprobs, HIDDEN, WEIGHT, TREE, **{name: value})
        options = {"temperature": 1.0, "softcap": None, name: value}
        raises(f"{name} is {value:g}, must be positive", ops.logits_row_stats, HIDDEN, *options.values())


def test_row_messages():
    def call(hidden=HIDDEN, weight=WEIGHT, row=ROW, token=TOKEN):
        return regrow.row_logprobs(hidden, weight, row, token)

    raises(r"hidden must be \[rows, width\].*got \[5, 7\] and \[11, 8\]", call, hidden=HIDDEN[:, :7])
    raises(r"hidden must be \[rows, width\].*got \[8\] and \[11, 8\]", call, hidden=HIDDEN[0])
    raises("hidden is torch.float64 on cpu, weight is torch.float32 on cpu: convert", call, hidden=HIDDEN.double())
    raises("must be float64, float32, bfloat16 or float16, got torch.int32", call, HIDDEN.int(), WEIGHT.int())
    raises(r"target_row\[1\] is 5, but hidden has 5 rows", call, row=torch.tensor([4, 5, -1]))
    raises(r"target_row\[2\] is -1, but hidden has 5 rows", call, row=torch.tensor([4, 0, -1]))
    raises(r"target_token\[0\] is 11, outside the vocabulary of 11", call, token=torch.tensor([11, 3, 3]))
    raises(r"target_token\[2\] is -100, outside the vocabulary of 11", call, token=torch.tensor([1, 3, -100]))
    raises(r"target_token must be an int64 tensor of shape \[3\] on cpu, got .*\[2\]", call, token=TOKEN[:2])
    raises(r"target_row must be an int64 tensor.*got torch.int32", call, row=ROW.int())
    raises(r"target_row must be an int64 tensor.*\[1, 3\]", call, row=ROW[None])


def test_tree_messages():
    def call(hidden=HIDDEN, **fields):
        return regrow.tree_logprobs(hidden, WEIGHT, SimpleNamespace(**(vars(TREE) | fields)))

    raises("the tree has no tokens to predict", call, tokens=None)
    raises("the tree has 5 tokens: give one row for each", call, hidden=HIDDEN[:4])
    raises(r"tokens\[3\] is 11, outside the vocabulary of 11", call, tokens=torch.tensor([1, 2, 3, 11, 12]))
    raises(r"parent_index\[2\] is 5, beyond the 5 tokens", call, parent_index=torch.tensor([-1, 0, 5, 1, 0]))
    raises(r"parent_index must be an int64 tensor of shape \[5\]", call, parent_index=TREE.parent_index.int())
    for where in (torch.ones(4, dtype=torch.bool), torch.ones(5)):
        message = r"where must be a boolean tensor of shape \[5\], got .* of shape"
        raises(message, regrow.tree_logprobs, HIDDEN, WEIGHT, TREE, where=where)
    call(tokens=torch.tensor([99, 2, 3, 4, 10]))  # nobody predicts a root: it may be a token of another vocabulary


def test_row_kernel_messages():
    lse, entropy = ops.logits_row_stats(HIDDEN, 1.0, None)
    target_row, token = torch.tensor([0, 4]), torch.tensor([1, 7])

    def pick(logits=HIDDEN, lse=lse, row=target_row, token=token):
        return ops.logits_pick(logits, lse, row, token, 1.0, None)

    raises("logits must be .rows, vocabulary. with a contiguous last dimension", pick, logits=HIDDEN.T)
    raises("logits must be float64, float32, bfloat16 or float16, got int32", pick, logits=HIDDEN.int())
    raises("logits have an empty vocabulary", pick, logits=HIDDEN[:, :0])
    raises(r"lse must be a contiguous \[5\] float64", pick, lse=lse.float())
    raises(r"target_row\[1\] is 5, but there are 5 rows", pick, row=torch.tensor([0, 5]))
    raises(r"target_token\[0\] is 8, outside the vocabulary of 8", pick, token=torch.tensor([8, 0]))

    def grad(row_start=(0, 2, 2, 2, 2, 2), token=token, dentropy=None, dlogp=(1.0, 1.0), logits=None):
        start, dlogp = torch.tensor(row_start), torch.tensor(dlogp)
        ops.logits_row_grad_(
            HIDDEN.clone() if logits is None else logits, lse, entropy, start, token, dlogp, dentropy, 1.0, None
        )

    grad()
    message = "logits have rows of 8 at a stride of {}: rows that share memory cannot be written, clone the logits"
    raises(message.format(0), grad, logits=HIDDEN[:1].clone().expand(5, 8))
    raises(message.format(7), grad, logits=torch.randn(36).as_strided((5, 8), (7, 1)))
    grad(logits=torch.randn(5, 9)[:, :8])
    raises("row_start must run from 0 to 2, got 0 to 1", grad, row_start=(0, 1, 1, 1, 1, 1))
    raises(r"row_start\[2\] is below row_start\[1\]", grad, row_start=(0, 2, 1, 2, 2, 2))
    raises(r"target_token\[1\] is below its predecessor in row 0: sort", grad, token=torch.tensor([7, 1]))
    raises(r"dlogp must be a contiguous \[2\] float32", grad, dlogp=(1.0,))
    raises(r"dentropy must be a contiguous \[5\] float32", grad, dentropy=torch.ones(4))


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("requires_grad", [(False, False), (True, False), (False, True), (True, True)])
def test_opcheck(softcap, requires_grad):
    hidden, weight = (x.clone().requires_grad_(r) for x, r in zip((HIDDEN, WEIGHT), requires_grad, strict=True))
    torch.library.opcheck(ops.row_logprobs.default, (hidden, weight, ROW, TOKEN, 0.7, softcap))
    torch.library.opcheck(ops.tree_logprobs.default, (hidden, weight, TREE.parent_index, TREE.tokens, 0.7, softcap))


def test_opcheck_of_the_parts():
    lse, entropy = ops.logits_row_stats(HIDDEN, 0.7, None)
    start, token = torch.tensor([0, 1, 1, 1, 1, 2]), torch.tensor([0, 3])
    torch.library.opcheck(ops.logits_row_stats.default, (HIDDEN, 0.7, 5.0))
    torch.library.opcheck(ops.logits_pick.default, (HIDDEN, lse, token, token, 0.7, None))
    torch.library.opcheck(
        ops.logits_row_grad_.default, (HIDDEN.clone(), lse, entropy, start, token, torch.ones(2), None, 0.7, None)
    )
    for dentropy in (None, torch.ones(5)):
        arguments = (HIDDEN, WEIGHT, ROW, TOKEN, 0.7, 5.0, True, True)
        torch.library.opcheck(ops.row_logprobs_bwd.default, (torch.ones(3), dentropy, *arguments))
        arguments = (HIDDEN, WEIGHT, TREE.parent_index, TREE.tokens, 0.7, 5.0, True, False)
        torch.library.opcheck(ops.tree_logprobs_bwd.default, (torch.ones(5), dentropy, *arguments))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    def rows(hidden, weight):
        logp, entropy = regrow.row_logprobs(hidden * 2, weight, ROW, TOKEN, temperature=0.7)
        return logp.sum() + entropy.sin().sum()

    def tree(hidden, weight):
        logp, entropy = regrow.tree_logprobs(hidden * 2, weight, TREE, softcap=9.0, return_entropy=True)
        return logp.sum() + entropy.sin().sum()

    for function in (rows, tree):
        inputs = [HIDDEN.clone().requires_grad_(), WEIGHT.clone().requires_grad_()]
        compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        expected = torch.autograd.grad(function(*inputs), inputs)
        torch.testing.assert_close(torch.autograd.grad(compiled(*inputs), inputs), expected)
