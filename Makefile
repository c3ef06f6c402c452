# Everything is installed into .venv beside this file; nothing outside this folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_WAIT_POLICY=passive
.DEFAULT_GOAL := help
.PHONY: help run test lint clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1	/' | expand -t 16

run: $(VENV)/ready ## learn ten digits in five experiences with six methods, about two minutes
	$(BIN)/ccmcl sweep configs/quickstart.toml --out runs
	$(BIN)/ccmcl report runs --out runs/report.html --title "Ten digits in five experiences"

test: $(VENV)/ready-dev ## check style and types, then run all tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(THREADS) $(BIN)/python -m pytest -n 2 --dist worksteal --durations=15

lint: $(VENV)/ready-dev ## check and mend style, check types
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

clean: ## remove the virtual environment and the runs
	rm -rf $(VENV) runs

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/ready-dev: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
