"""Builds the extension with CMake; everything else about the package is in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

import ninja
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
CMAKE = [sys.executable, "-m", "cmake"]  # the package's own, wherever its script may lie


class CMakeBuild(build_ext):
    """Configures, builds and installs into the folder that holds the `regrow` package."""

    def run(self):
        package_root = Path(self.get_ext_fullpath("regrow._C")).resolve().parent.parent
        build_dir = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 2))
        configure = [
            *CMAKE, "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja",
            f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR) / 'ninja'}",
            f"-DPython_EXECUTABLE={sys.executable}",
            *os.environ.get("CMAKE_ARGS", "").split(),
        ]  # fmt: skip
        subprocess.check_call(configure)
        subprocess.check_call([*CMAKE, "--build", str(build_dir), "--parallel", jobs])
        subprocess.check_call([*CMAKE, "--install", str(build_dir), "--prefix", str(package_root)])


setup(ext_modules=[Extension("regrow._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
