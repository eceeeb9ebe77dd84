import json
import subprocess
import sys

import pytest

from regrow.__main__ import main
from regrow.demo import DemoError, run

# What other tools read from the report; dots mean nesting.
KEYS = (
    "gradient.relative_l2", "gradient.norm", "tokens.dense", "tokens.packed", "seconds.replicated", "seconds.packed",
    "token_ratio", "speedup", "loss.replicated", "loss.packed", "rewards", "questions", "responses", "versions.torch",
)  # fmt: skip


@pytest.fixture
def stubbed(monkeypatch, model, groups):
    """The demo with the tiny model and groups that need no sampling."""
    monkeypatch.setattr(run, "load", lambda folder: (model, None))
    monkeypatch.setattr(run, "draw_groups", lambda *_, **__: (groups, 3))


def test_report_holds_every_key(stubbed, tmp_path, capsys):
    path = tmp_path / "new" / "report.json"
    assert main(["demo", "--out", str(path)]) == 0
    report = json.loads(path.read_text())
    for key in KEYS:
        value = report
        for name in key.split("."):
            value = value[name]
    assert report["gradient"]["relative_l2"] <= 1e-5
    assert report["tokens"] == {"dense": 78, "packed": 21}
    assert report["token_ratio"] == pytest.approx(78 / 21)
    assert [len(texts) for texts in report["responses"]] == [len(rewards) for rewards in report["rewards"]] == [4, 3]
    assert report["questions_drawn"] == 3
    assert "gradient, relative L2" in capsys.readouterr().out


def test_a_gradient_beyond_the_limit_fails(stubbed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "GRADIENT_LIMIT", -1.0)
    assert main(["demo", "--out", str(tmp_path / "report.json")]) == 1
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


def test_a_group_of_one_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--group", "1"])
    assert "a group needs at least 2 responses, got 1" in capsys.readouterr().err


def test_help_and_errors_without_the_demo_packages():
    block = "import sys; sys.modules['transformers'] = sys.modules['rich'] = None; import runpy; "
    block += "sys.argv = ['regrow', *sys.argv[1:]]; runpy.run_module('regrow', run_name='__main__')"
    shown = subprocess.run([sys.executable, "-c", block, "--help"], capture_output=True, text=True)
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    refused = subprocess.run([sys.executable, "-c", block, "demo"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr == "regrow demo: the demo needs rich: pip install regrow[demo]\n"
