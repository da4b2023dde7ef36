# Every target sets up what it needs in .venv, with Python and pip alone.
# PYTHON=... chooses the interpreter, PYTEST_ARGS=... goes to pytest, ARGS=... to demo and bench.

VENV := .venv
BIN := $(VENV)/bin
# -q leaves errors and warnings, which say what went wrong, and drops the list of downloads.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install -q -c constraints.txt
# One worker a core, at most eight; one file stays on one worker, so what it compiled is used again.
WORKERS ?= auto
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses=8 --dist=loadfile

# An interpreter on the path may be a stub that only fails: the one chosen must run, have a
# supported version and be able to make an environment.
USABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
FIND_PYTHON = for python in $(PYTHON) $(if $(PYTHON),,python3.13 python3.12 python3.11 python3 python); do \
	  if "$$python" -c '$(USABLE)' >/dev/null 2>&1; then found="$$python"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "credax needs Python 3.11, 3.12 or 3.13 with venv$(if $(PYTHON),; PYTHON=$(PYTHON) is none,: set PYTHON=/path/to/python)." >&2; \
	  exit 1; \
	fi

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two pips in one environment would undo each other's work.
.NOTPARALLEL:
.PHONY: help demo test test-all coverage lint format bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo ## fit, compare and explain posteriors on a small example
	@$(BIN)/credax demo $(ARGS)

# Compiling is most of the time of short tests, so they do without LLVM's optimisations and, where JAX still has
# them (it ends at a flag that it does not know), with the simpler emitters, which take a quarter less time.
SIMPLER := --xla_cpu_use_fusion_emitters=false
COMPILE_FAST = flags=--xla_backend_optimization_level=0; \
	if XLA_FLAGS=$(SIMPLER) $(BIN)/python -c 'import jax; jax.devices()' >/dev/null 2>&1; then \
	  flags="$$flags $(SIMPLER)"; \
	fi
test: $(VENV)/.installed-test ## the quick tests
	@$(COMPILE_FAST); XLA_FLAGS="$$flags $$XLA_FLAGS" $(PYTEST) -m "not slow" $(PYTEST_ARGS)

# The short tests of all cases first; then the long ones, whose steps take more time than compiling. These begin with
# the demo, which has a file of its own and would come last, when only one worker is left, if files were sorted.
test-all: $(VENV)/.installed-test-all ## every test, the slow ones and the adapters included
	@$(COMPILE_FAST); XLA_FLAGS="$$flags $$XLA_FLAGS" $(PYTEST) -m "matrix or not slow" $(PYTEST_ARGS); \
	short=$$?; $(PYTEST) --no-loadscope-reorder -m "slow and not matrix" $(PYTEST_ARGS) && exit $$short

coverage: $(VENV)/.installed-test-all ## every test, and which lines they reach, in htmlcov/
	@$(PYTEST) --cov --cov-report=term --cov-report=html $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev ## style, format, types and the order of the layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-logo --no-cache

format: $(VENV)/.installed-dev ## rewrite the code in the project's format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed-test ## measure speed and quality
	@$(BIN)/python -m benchmarks $(ARGS)

# TUTORIALS=run runs the notebooks and shows their outputs, which takes some minutes.
docs: $(VENV)/.installed-docs $(if $(TUTORIALS),$(VENV)/.installed-tutorials) ## build the documentation into site/
	@CREDAX_TUTORIALS=$(TUTORIALS) $(BIN)/python -m mkdocs build --strict --quiet
	@echo "documentation: site/index.html"

clean: ## remove the environment, caches and everything built
	@rm -rf $(VENV) build dist site htmlcov .coverage .coverage.* .hypothesis .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(FIND_PYTHON); \
	echo "making $(VENV) with $$("$$found" -c 'import sys; print("Python %d.%d.%d" % sys.version_info[:3])')"; \
	"$$found" -m venv --clear $(VENV)

# The stamps are newer than the two files that decide what is installed, or pip runs again.
$(VENV)/.installed-core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing credax"
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing credax[$*]"
	@$(PIP) -e ".[$*]"
	@touch $@
