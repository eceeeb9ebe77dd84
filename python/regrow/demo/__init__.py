"""The main job: a language model learns a task by GRPO on prefix trees, and what that saves is measured."""

import importlib.util

for _package in ("rich", "reasoning_gym", "matplotlib"):
    if importlib.util.find_spec(_package) is None:
        raise ImportError(f"the demo needs {_package}: pip install regrow[demo]")


class DemoError(RuntimeError):
    """The demo cannot go on, for a reason that the user can remedy; the message says how."""
