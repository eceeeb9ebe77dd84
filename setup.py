"""Builds the extension with CMake; everything else about the package is in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Configures, builds and installs into the folder that holds the `regrow` package."""

    def run(self):
        package_root = Path(self.get_ext_fullpath("regrow._C")).resolve().parent.parent
        build_dir = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 2))
        configure = [
            "cmake", "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}",
            *os.environ.get("CMAKE_ARGS", "").split(),
        ]  # fmt: skip
        subprocess.check_call(configure)
        subprocess.check_call(["cmake", "--build", str(build_dir), "--parallel", jobs])
        subprocess.check_call(["cmake", "--install", str(build_dir), "--prefix", str(package_root)])


setup(ext_modules=[Extension("regrow._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
