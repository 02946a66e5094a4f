# Two commands do everything on a fresh machine with Python 3.11 or newer and make:
#   make demo      install, find the branches for an example's network on built-in images, write the page
#   make test      install, then lint, types, import contracts and the tests
# And: make test-all (the slow tests too), make docs (the site), make bench,
# make test-gpu, make test-abuse (kills, damage, random input; twelve minutes).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

.PHONY: demo test test-all lint docs bench test-gpu test-abuse clean

# With --whole no clock has a say: every machine trains the same runs.
demo: $(VENV)/lab
	$(BIN)/asymtrain tune examples.deep_network:build --data shapes --data-option classes=4 \
	  --data-option size=1600 --data-option image_size=16 --epochs 12 --batch 64 --learning-rate 2e-3 \
	  --whole --out demo
	@echo "The network was chosen because branches help it; yours may need none. Open demo/report.html"

test: lint
	$(PYTEST) -m "not slow"

# After the others, the tests that take long: clusters, browsers, killed processes, statistics over many seeds, and
# further cases of what quick tests hold.
test-all: test
	$(PYTEST) -m slow

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, into build/site. Without --quiet, which would hide warnings from --strict.
docs: $(VENV)/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The tests that need a CUDA device. They run from the source tree with the Python that has one.
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -m gpu -s tests

# Kills, damaged files, random calls and models, two parts at a time. ABUSE_SEED=N repeats the run of that seed.
test-abuse: $(VENV)/dev
	$(BIN)/python tests/abuse

bench: $(VENV)/lab
	$(BIN)/python benchmarks/stack.py
	$(BIN)/python benchmarks/overhead.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/lab: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python .ci/install.py lab
	@touch $@

$(VENV)/dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python .ci/install.py lab ray tensorboard lightning transformers torchjd graphs docs dev
	@touch $@ $(VENV)/lab

clean:
	rm -rf $(VENV) build demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
