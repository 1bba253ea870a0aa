# Every habit is a target; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install serve test test-slow check fix docs kernels wheels release clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=
TESTS ?= tests
MANIFESTS := requirements-build.txt requirements-dev.txt pyproject.toml \
	$(wildcard core/pyproject.toml csrc/pyproject.toml plugins/*/pyproject.toml)
KERNELS := $(wildcard csrc/CMakeLists.txt csrc/include/* csrc/include/*/* csrc/cpu/* csrc/python/*/*)
# Of pip's long output: each package it fetches, what it builds, and that it still works.
PIP_PROGRESS := sed -unE \
	-e 's/^Collecting ([A-Za-z0-9._-]+).*/      collecting \1/p' \
	-e 's/^Processing .*\/([A-Za-z0-9._]+)-[^/]*\.whl$$/      collecting \1/p' \
	-e 's/^ *Downloading ([^ ]*) \(([0-9.]+ [MG]B)\).*/      downloading \1, \2/p' \
	-e 's/^ *Building (wheel|editable) for ([^ ]*) .*started$$/      building \2/p' \
	-e 's/^Installing collected packages:.*/      unpacking/p'
# A mirror without one of the packages is no fault as long as another index has it.
PIP_WARNINGS := 2> >(grep --line-buffered -v '^WARNING: Location .* is ignored' >&2)
PYTEST := $(BIN)/python -m pytest -q -rs --durations=10 --durations-min=10

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20
	@echo '  ARGS="…" adds arguments to serve, test and release.'

install: $(VENV)/.installed ## make the environment, install the workspace, fetch the default model
	@echo "installed in $(VENV); next: make serve"

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON); install Python 3.11 or newer, or set PYTHON=…"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(0 if sys.version_info >= (3, 11) else f"error: Python {v} is too old; Pegboard needs 3.11 or newer (make PYTHON=python3.12 …)")'
	@echo "[1/4] making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.python $(MANIFESTS)
	@echo "[2/4] installing build backends"
	@$(PIP) install -q -r requirements-build.txt $(PIP_WARNINGS)
	@echo "[3/4] installing the workspace and its dependencies (PyTorch is the large one; minutes the first time)"
	@PATH="$(abspath $(BIN)):$$PATH" $(PIP) install --no-build-isolation -r requirements-dev.txt $(PIP_WARNINGS) | $(PIP_PROGRESS)
	@$(BIN)/python -c 'import pegboard, torch; print(f"      pegboard {pegboard.__version__} on torch {torch.__version__}")'
	@echo "[4/4] fetching the default model"
	@$(BIN)/python -m pegboard.cli.fetch_default_model
	@touch $@ $(VENV)/.kernels

# The install builds the kernels; this builds them again only when a source is newer.
$(VENV)/.kernels: $(KERNELS) | $(VENV)/.installed
	@if [ -n "$$(find $^ -newer $@ 2>&1)" ]; then \
		echo "the kernels' sources changed: building them again"; \
		PATH="$(abspath $(BIN)):$$PATH" $(PIP) install -q --no-deps --no-build-isolation -e ./csrc $(PIP_WARNINGS) || exit 1; fi
	@touch $@

kernels: $(VENV)/.installed ## build the CPU kernels again
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) install --no-deps --no-build-isolation -e ./csrc
	@touch $(VENV)/.kernels

serve: $(VENV)/.kernels ## serve a model on 127.0.0.1:8000 (ARGS="MODEL --port 9000 …")
	@exec $(BIN)/platform serve $(ARGS)

test: $(VENV)/.kernels ## all tests but slow and gpu; under 10 minutes on two cores
	$(PYTEST) -m "not slow and not gpu" --not-run-file build/not-run-test.txt $(TESTS) $(ARGS)

test-slow: $(VENV)/.kernels ## the slow tests
	$(PYTEST) -m "slow and not gpu" --not-run-file build/not-run-test-slow.txt $(TESTS) $(ARGS)

check: $(VENV)/.kernels ## format, lint, types, import contracts, rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(PYTEST) tests/contracts

fix: $(VENV)/.installed ## format, and mend what lint can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed ## write the API pages of sdk_docs from docstrings
	$(BIN)/python tools/api_docs.py

wheels: $(VENV)/.installed ## build every distribution's wheel into dist/
	@for p in core csrc plugins/* .; do \
		[ -f $$p/pyproject.toml ] && PATH="$(abspath $(BIN)):$$PATH" $(PIP) wheel -q --no-deps --no-build-isolation -w dist $$p || exit 1; done
	@ls dist

release: $(VENV)/.installed ## set every version (ARGS=0.2.0)
	$(BIN)/python tools/release.py $(ARGS)

clean: ## remove the environment and what was built
	rm -rf $(VENV) build dist
