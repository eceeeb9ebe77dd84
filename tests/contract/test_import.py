"""`import regrow` is light, and needs no transformers."""

import statistics
import subprocess
import sys

import pytest

# As on a machine without transformers: neither found nor left over.
WITHOUT_TRANSFORMERS = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "transformers":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""

SECONDS_BEYOND_TORCH = """
import time
import torch
began = time.perf_counter()
import regrow
print(time.perf_counter() - began)
"""

USE = """
import torch
assert regrow.PrefixTree.from_sequences([[1, 2], [1, 3]]).num_tokens == 3
assert "transformers" not in sys.modules and "regrow.models" not in sys.modules
"""

NEEDS = """
try:
    import regrow.models
except ImportError as error:
    print(error)
"""


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_regrow_works_without_transformers():
    # The median of 5, because the first may read the files from a cold disk. It takes a tenth of the bar.
    seconds = [float(python(WITHOUT_TRANSFORMERS + SECONDS_BEYOND_TORCH + USE)) for _ in range(5)]
    assert statistics.median(seconds) <= 0.3


@pytest.mark.parametrize("absence", [WITHOUT_TRANSFORMERS, "import sys; sys.modules['transformers'] = None"])
def test_models_say_what_to_install(absence):
    needs = "regrow.models needs transformers 5.24 or later: pip install regrow[models]"
    assert python(absence + NEEDS) == needs


# What is heavy belongs to regrow.models and regrow.demo, and to the call that needs it.
@pytest.mark.parametrize("module", ["transformers", "matplotlib", "rich", "reasoning_gym", "gguf"])
def test_importing_regrow_does_not_import_what_is_there(module):
    python(f"import sys\nimport regrow\nassert {module!r} not in sys.modules")
