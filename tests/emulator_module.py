"""The emulator's module, from the build folder: it is not installed."""

import importlib.util
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def load():
    path = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
    path /= "regrow_emulator" + sysconfig.get_config_var("EXT_SUFFIX")
    assert path.exists(), f"{path} is missing: build it with `make build`"
    spec = importlib.util.spec_from_file_location("regrow_emulator", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
