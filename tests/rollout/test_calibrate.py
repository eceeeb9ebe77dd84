"""`calibrate` on a tiny model: what is measured, what is kept, and that `generate` chooses by it."""

import json

import pytest
import torch

from regrow.rollout import Calibrated, CostTable, calibrate, calibration, generate
from tiny_policy import TinyPolicy

GRID = dict(batch_sizes=(1, 3), tokens=(0, 1, 4), context_tokens=20)


@pytest.fixture
def measured(monkeypatch):
    """The grids that were measured, not read."""
    calls, measure = [], calibration.measure
    monkeypatch.setattr(
        calibration, "measure", lambda *arguments: (calls.append(arguments[1:4]), measure(*arguments))[1]
    )
    return calls


def test_the_table_covers_the_grid(measured):
    progress = []
    costs = calibrate(TinyPolicy(), **GRID, progress=lambda done, total: progress.append((done, total)))
    assert isinstance(costs, CostTable)
    assert costs.batch_sizes == [1, 3] and costs.tokens == [0, 1, 4] and costs.context_tokens == 20
    assert all(0 < second < 10 for row in costs.seconds for second in row) and len(costs.seconds) == 2
    total = progress[-1][1]
    assert progress == [(done, total) for done in range(1, 1 + total)] and total % 6 == 0
    assert [size for size, _, _ in costs.table(acceptance=0.5)] == [1, 3]
    assert costs.fingerprint["dtype"] == "torch.float64" and "TinyPolicy" in costs.fingerprint["model"]


def test_nothing_is_read_that_was_not_written():
    """Fresh memory is nan here (conftest.py), and logits of nan are refused."""
    calibrate(TinyPolicy(), **GRID)
    generate(TinyPolicy(windows=(None, 3)), [[1, 2]], 2, max_new_tokens=80, seed=0, max_batch=1)


def test_large_steps_are_extrapolated():
    costs = calibrate(TinyPolicy(), batch_sizes=(64,), tokens=(0, 3, 32), context_tokens=4)
    assert costs.seconds[0][2] == pytest.approx(costs.seconds[0][1] * 33 / 4)


def test_it_is_measured_once_for_a_model(measured):
    policy = TinyPolicy()
    first = calibrate(policy, **GRID)
    assert calibrate(policy, **GRID) is first and len(measured) == 1
    calibrate(policy, **(GRID | dict(context_tokens=10)))
    calibrate(TinyPolicy(), **GRID)
    assert len(measured) == 3
    assert calibrate(policy, **GRID) is first


def test_the_file_serves_models_of_equal_fingerprint_alone(measured, tmp_path):
    path = tmp_path / "costs.json"
    first = calibrate(TinyPolicy(), **GRID, path=path)
    assert json.loads(path.read_text())["seconds"] == first.seconds and len(measured) == 1
    again = calibrate(TinyPolicy(seed=1), **GRID, path=path, progress=lambda done, total: pytest.fail("measured"))
    assert again == first and len(measured) == 1

    others = [
        (TinyPolicy(vocabulary=7), GRID),
        (TinyPolicy().float(), GRID),
        (TinyPolicy(), GRID | dict(tokens=(0, 2))),
        (TinyPolicy(), GRID | dict(batch_sizes=(2,))),
    ]
    for number, (policy, grid) in enumerate(others, start=2):
        costs = calibrate(policy, **grid, path=path)
        assert costs != first and len(measured) == number
        assert CostTable.load(path, costs.fingerprint) == costs  # which replaced what was there
    calibrate(TinyPolicy(), **GRID, path=path)
    assert len(measured) == 6


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"version": 1}'])
def test_a_file_that_holds_no_costs_is_replaced(content, measured, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(content)
    costs = calibrate(TinyPolicy(), **GRID, path=path)
    assert len(measured) == 1 and CostTable.load(path) == costs


def test_a_known_model_writes_the_file_too(measured, tmp_path):
    policy = TinyPolicy()
    costs = calibrate(policy, **GRID)
    assert calibrate(policy, **GRID, path=tmp_path / "new.json") is costs
    assert CostTable.load(tmp_path / "new.json") == costs and len(measured) == 1


def test_threads_are_part_of_what_costs_hold_for(measured, num_threads, tmp_path):
    policy, path = TinyPolicy(), tmp_path / "costs.json"
    grid = dict(batch_sizes=(1,), tokens=(0,), context_tokens=2)
    num_threads(1)
    calibrate(policy, **grid, path=path)
    num_threads(2)
    calibrate(policy, **grid, path=path)
    assert len(measured) == 2


def test_measuring_leaves_the_model_and_its_randomness_alone():
    policy = TinyPolicy()
    before = [parameter.clone() for parameter in policy.parameters()]
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    calibrate(policy, **GRID)
    assert torch.rand(4).equal(expected)
    assert all(a.equal(b) for a, b in zip(before, policy.parameters(), strict=True))


def test_a_short_context_shortens_the_prompt():
    policy = TinyPolicy(positions=12)  # beyond them the embedding fails
    policy.context_tokens = 12
    assert calibrate(policy, **GRID).context_tokens == 12 - 4 - 1
    with pytest.raises(ValueError, match="a step of 11 tokens leaves the model's context of 12: give fewer tokens"):
        calibrate(policy, batch_sizes=(1,), tokens=(0, 11))


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (dict(batch_sizes=(3, 1)), "batch_sizes is"),
        (dict(tokens=(1, 2)), "tokens begins with 1"),
        (dict(model="llama"), "the model is a str"),
        (dict(path="absent/costs.json"), "path is absent/costs.json, in a folder that does not exist: make it first"),
    ],
)
def test_refused(grid, message):
    with pytest.raises(ValueError, match=message):
        calibrate(**(dict(model=TinyPolicy()) | GRID | grid))


def test_generate_chooses_by_measured_costs(measured):
    policy = TinyPolicy(vocabulary=11)
    options = dict(max_new_tokens=30, seed=0)
    prompts = [[1, 2, 3], [4, 5]]
    expected = [sequence.tolist() for sequence in generate(policy, prompts, 2, **options).sequences]
    assert not measured
    for _ in range(2):
        rollout = generate(policy, prompts, 2, **options, drafter="suffix")
        assert [sequence.tolist() for sequence in rollout.sequences] == expected
    assert len(measured) == 1

    # Where drafted tokens cost nothing, all that is drafted is verified; where they cost much, little is.
    verified = {}
    for name, dear in (("cheap", 1.0), ("dear", 50.0)):
        costs = CostTable([1, 4], [0, 32], [[1.0, dear]] * 2, context_tokens=9, fingerprint={})
        rollout = generate(policy, prompts, 2, **options, drafter="suffix", strategy=Calibrated(costs))
        assert [sequence.tolist() for sequence in rollout.sequences] == expected
        verified[name] = rollout.stats.drafted
    assert verified["cheap"] > 2 * verified["dear"] and len(measured) == 1
