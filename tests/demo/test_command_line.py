import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from regrow.__main__ import main
from regrow.demo import DemoError, run
from regrow.rollout import Stats, StepStats

# What other tools read from the report; dots mean nesting.
KEYS = (
    "gradient.relative_l2", "gradient.norm", "tokens.dense", "tokens.packed", "seconds.replicated", "seconds.packed",
    "peak_bytes.replicated", "peak_bytes.packed", "token_ratio", "speedup", "loss.replicated", "loss.packed", "rewards",
    "heldout.before", "heldout.after", "seconds.phases.learn", "seconds.total", "learning.loss",
    "learning.gradient_norm", "settings.seed", "compared.questions", "compared.responses", "versions.torch",
    "seconds.replayed", "peak_bytes.replayed", "loss.replayed", "gradient.packed", "gradient.replayed",
    "replay.replayed.segments", "ledger.packed.total.ratio", "ledger.replayed.path_kv.measured",
    "learning.replay.forward_tokens", "learning.replay.differentiated_tokens", "settings.chunk_tokens",
    "rollout.tokens_per_second", "rollout.acceptance_length", "rollout.steps_that_draft", "rollout.trace",
)  # fmt: skip
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def stubbed(monkeypatch, model, groups):
    """The demo with the tiny model and groups that need no sampling; returns how it was asked to sample."""
    asked = []

    class Sampler:
        def __init__(self, policy, tokenizer, task, costs, *, max_new_tokens):
            self.stats, self.costs = [], costs

        def sample(self, entries, group_size):
            asked.append((len(entries), group_size))
            trace = [StepStats(2, 0, 0, 0.0, 0.5), StepStats(1, 3, 2, 0.1, 0.4)]
            self.stats.append(Stats(1.0, 0.1, 6, 9, 2, 3, 2, 100, 90, trace))
            return groups

    def questions(name, tokenizer, *, seed, num_heldout):
        return SimpleNamespace(questions=lambda count: [None] * count, num_heldout=num_heldout)

    monkeypatch.setattr(run, "CHUNK_TOKENS", 7)  # of a tree of 21, whose sequences share 7
    monkeypatch.setattr(run, "load", lambda folder: (model, None))
    monkeypatch.setattr(run, "Task", questions)
    monkeypatch.setattr(run, "Sampler", Sampler)
    monkeypatch.setattr(run, "heldout_reward", lambda sampler, task: task.num_heldout / 100)
    return asked


def test_report_holds_every_key(stubbed, tmp_path, capsys):
    path = tmp_path / "new" / "report.json"
    assert main(["demo", "--steps", "6", "--seed", "3", "--out", str(path)]) == 0
    report = json.loads(path.read_text())
    for key in KEYS:
        value = report
        for name in key.split("."):
            value = value[name]
    assert report["gradient"]["relative_l2"] <= 1e-5
    assert report["tokens"] == {"dense": 78, "packed": 21}
    assert report["token_ratio"] == pytest.approx(78 / 21)
    assert min(report["peak_bytes"].values()) > 0
    assert report["rewards"] == pytest.approx([(1.5 / 4 + 1 / 3) / 2] * 6)
    assert report["heldout"] == {"before": 0.64, "after": 0.64}
    assert report["learning"]["replay"]["inner_segments"] == [1] * 6
    assert report["ledger"]["packed"]["total"]["measured"] != report["ledger"]["replayed"]["total"]["measured"]
    assert len(report["learning"]["loss"]) == report["settings"]["steps"] == 6
    assert report["settings"]["seed"] == 3
    assert report["rollout"]["acceptance_length"] == pytest.approx([1 + 2 / 3] * 6)
    assert report["rollout"]["steps_that_draft"] == [1] * 6
    assert report["rollout"]["trace"][1] == StepStats(1, 3, 2, 0.1, 0.4)._asdict()
    assert stubbed == [(8, 8)] * 6  # what is compared is the first step's own sample
    assert path.with_suffix(".png").read_bytes().startswith(PNG)
    shown = capsys.readouterr().out
    assert "acceptance length" in shown and "6 of 12" in shown
    assert "gradient, relative L2" in shown and "total beyond the weights" in shown


def test_quick_is_small_and_options_go_before_it(stubbed, tmp_path):
    path = tmp_path / "report.json"
    assert main(["demo", "--quick", "--out", str(path)]) == 0
    report = json.loads(path.read_text())
    assert stubbed == [(4, 4)] * 3
    assert report["heldout"]["before"] == 0.16
    assert len(report["seconds"]["runs"]["packed"]) == 1
    stubbed.clear()
    assert main(["demo", "--quick", "--group", "3", "--steps", "1", "--out", str(path)]) == 0
    assert stubbed == [(4, 3)]


def test_a_gradient_beyond_the_limit_fails(stubbed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "GRADIENT_LIMIT", -1.0)
    assert main(["demo", "--quick", "--out", str(tmp_path / "report.json")]) == 1
    assert "the gradients differ by" in capsys.readouterr().out


def test_what_a_user_can_remedy_is_one_line(monkeypatch, capsys):
    def fail(**_):
        raise DemoError("try another --seed")

    monkeypatch.setattr(run, "run", fail)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "regrow demo: try another --seed\n"


def test_a_model_that_is_no_folder_is_told(tmp_path, capsys):
    assert main(["demo", "--model", str(tmp_path / "absent")]) == 1
    assert "absent is not a folder: give a local transformers model" in capsys.readouterr().err


# An update needs a spread of rewards, and a run at least one update.
@pytest.mark.parametrize(
    "option, message",
    [("--group", "a group needs at least 2 responses, got 1"), ("--steps", "must be at least 1, got 0")],
)
def test_numbers_that_are_too_small_are_refused(capsys, option, message):
    with pytest.raises(SystemExit):
        main(["demo", option, message.split()[-1]])
    assert message in capsys.readouterr().err


def test_help_and_errors_without_the_demo_packages():
    block = "import sys; sys.modules['transformers'] = sys.modules['rich'] = None; import runpy; "
    block += "sys.argv = ['regrow', *sys.argv[1:]]; runpy.run_module('regrow', run_name='__main__')"
    shown = subprocess.run([sys.executable, "-c", block, "--help"], capture_output=True, text=True)
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    refused = subprocess.run([sys.executable, "-c", block, "demo"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr == "regrow demo: the demo needs rich: pip install regrow[demo]\n"
