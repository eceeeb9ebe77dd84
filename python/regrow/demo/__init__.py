"""The main job: one GRPO update of a language model, computed once per sequence and once on the packed tree."""

import importlib.util

for _package in ("rich", "reasoning_gym"):
    if importlib.util.find_spec(_package) is None:
        raise ImportError(f"the demo needs {_package}: pip install regrow[demo]")


class DemoError(RuntimeError):
    """The demo cannot go on, for a reason that the user can remedy; the message says how."""
