# `make run` and `make test` set up everything they need: Python 3.11+, pip and make are enough.
PYTHON ?= python3
BIN := .venv/bin
LONG := test_every_shape.py test_perturbation.py  # each test is short, but there are many
PURELIB := -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'
# An environment beside the main one: all that is installed there, and packages of its own before it.
BESIDE = $(PYTHON) -m venv .venv/$(1) && $(BIN)/python $(PURELIB) > $$(.venv/$(1)/bin/python $(PURELIB))/base.pth

.PHONY: help setup docs run readme test test-fast test-portable test-networks test-flower lint bench tables compare-libraries clean
.DEFAULT_GOAL := help

help:           ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: .venv/ready  ## create .venv; quick when nothing changed

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dorfl needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

run: setup      ## reproduce the paper's study; the page is results/report.html
	$(BIN)/python -m experiments reproduce all --seeds 10 --out results

readme: run     ## put the study's tables and pictures into the README
	$(BIN)/python docs/refresh.py results

test: lint      ## lint, types and all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-fast: setup  ## the tests that take no more than a few seconds
	HYPOTHESIS_PROFILE=fast $(BIN)/python -m pytest -n 2 --dist loadgroup -m 'not slow' $(addprefix --ignore=tests/solvers/,$(LONG))

test-portable: setup  ## the numerical tests as on other processors
	$(BIN)/python tests/portable.py

test-networks: .venv/torch/ready  ## what needs PyTorch, in an environment of its own
	PYTHONPATH=$(CURDIR)/src:$(CURDIR) .venv/torch/bin/python -m pytest -n 2 --dist loadgroup tests/networks src/dorfl/networks src/dorfl/flower/client.py src/dorfl/flower/strategy.py tests/experiments/test_benchmark*.py experiments/baselines.py experiments/benchmark.py experiments/candidates.py

.venv/torch/ready: .venv/ready
	$(call BESIDE,torch)
	.venv/torch/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	touch $@

test-flower: setup  ## the carriers on the newest Flower, and in its simulation
	$(call BESIDE,flower)
	.venv/flower/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade flwr
	.venv/flower/bin/python -m pip install --quiet --disable-pip-version-check ray
	PYTHONPATH=$(CURDIR)/src .venv/flower/bin/python -m pytest tests/carriers -k "flower or simulation"

docs: setup     ## the documentation, offline; its first page is docs/_build/html/index.html
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

lint: setup     ## Ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup    ## speed, as ratios taken side by side in one run
	$(BIN)/python benchmarks/rounds.py

tables: setup   ## five methods on public tables, beside scikit-learn
	PYTHONPATH=$(CURDIR) $(BIN)/python benchmarks/tables.py

compare-libraries: .venv/bench/ready  ## accuracy beside dro, skwdro and scikit-learn; docs/comparison.md
	PYTHONPATH=$(CURDIR)/src:$(CURDIR) .venv/bench/bin/python -m benchmarks.compare_libraries

.venv/bench/ready: .venv/ready
	$(call BESIDE,bench)
	.venv/bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

clean:          ## remove what the commands above made
	rm -rf .venv results docs/_build docs/api docs/auto_examples
