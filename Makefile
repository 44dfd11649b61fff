# Every target makes .venv by itself; the second time it needs no network and no wait.
#   make demo     train an agent on CartPole and watch it score
#   make test     every test, with coverage
#   make check    format, lint, types, layers, spelling
#   make bench    speed beside other libraries
#   make chaos    what happens when processes are killed: the figures of docs/reliability.md, in half an hour
#   make format   put the code into the form that `make check` wants

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Constraints keep the tested versions; without them pip may take another build of torch.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
DEMO := runs/demo

.DEFAULT_GOAL := help
.PHONY: help demo test check bench chaos format clean

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	@touch $@

# One stamp per set of dependencies: an install runs again only when one of these files changes.
$(VENV)/.core: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.core

$(VENV)/.bench: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) --editable '.[bench]'
	@touch $@ $(VENV)/.core

# Small networks gain nothing from a second thread, and lose much where threads must share cores with other programs.
demo test: export OMP_NUM_THREADS ?= 1

demo: $(VENV)/.core
	$(BIN)/twostep train CartPole-v1 --run_dir $(DEMO)
	$(BIN)/twostep eval $(DEMO)

test: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses 2 --cov --cov-report=term

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/codespell

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/speed.py

chaos: $(VENV)/.dev
	$(BIN)/python benchmarks/chaos.py

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .coverage .hypothesis .pytest_cache .ruff_cache
