# Each goal does its own set-up: a virtual environment in .venv, with everything that it needs.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/chaosrunner
PYTEST := $(VENV)/bin/pytest
# Files side by side, in the order that tests/conftest.py gives them.
SIDE_BY_SIDE := -n 5 --dist loadfile --no-loadscope-reorder
# What is about the labs themselves, and not about what is tried on them.
OF_LABS := tests/lab tests/conformance tests/toxiproxy tests/cli/test_lab.py tests/cli/test_standing.py

# Compiled modules are kept: some hundred processes, and each worker, would compile the same ones again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: drill test test-lab toxiproxy test-slow test-real test-real-slow cover check style types rules compiled bench trial clean

# The main job: one drill that must fail for the expected reason, and its graceful twin, which must pass.
drill: $(VENV)/ready
	$(RUN) rehearse drills/lab-evict-one-replica.yaml drills/lab-evict-one-replica-graceful.yaml \
	  --expect failed:loss_on_victim,incomplete_200 --expect passed

# The product's tests. Many wait for real clocks: what failed beside others, on a machine that others use too, is tried
# once more by itself.
test: $(VENV)/ready toxiproxy compiled
	$(PYTEST) $(SIDE_BY_SIDE) $(OF_LABS:%=--ignore=%) || \
	  $(PYTEST) $(OF_LABS:%=--ignore=%) --last-failed --last-failed-no-failures none

# The tests of the embedded lab, its commands, and whatever of the real one needs no Kubernetes.
test-lab: $(VENV)/ready toxiproxy
	$(PYTEST) $(SIDE_BY_SIDE) $(OF_LABS) || $(PYTEST) $(OF_LABS) --last-failed --last-failed-no-failures none

# The real Toxiproxy, built once from its source where there is a Go; without it the tests that want it are left out.
toxiproxy: $(VENV)/ready
	-$(VENV)/bin/python -m tests.toxiproxy

# More combinations of what `test` and `test-lab` test.
test-slow: $(VENV)/ready
	$(PYTEST) $(SIDE_BY_SIDE) -m 'slow and not real'

# What both cover; takes half as long again.
cover: $(VENV)/ready
	$(PYTEST) $(SIDE_BY_SIDE) --cov --cov-report=term:skip-covered

# The suite that both labs are held to, and drills, on a real Kubernetes; Linux, as root. Builds what is missing: some 10 minutes, once.
test-real: $(VENV)/ready
	$(RUN) lab build
	$(PYTEST) -m real --timeout=600 --durations=10 || $(PYTEST) -m real --timeout=600 --last-failed --last-failed-no-failures none

# Outages of the control plane, rights one by one, Jobs, the workload itself, all on the real one; 15 minutes.
test-real-slow: $(VENV)/ready
	$(RUN) lab build
	$(PYTEST) -m 'real and slow' --timeout=600

# Style, types, and the rules between rooms.
check: style types rules

style: $(VENV)/ready
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

types: $(VENV)/ready
	$(VENV)/bin/mypy

rules: $(VENV)/ready
	$(VENV)/bin/lint-imports --no-cache

# Tests with their assertions rewritten, once for all workers: each would do it for itself, in a fresh clone. What cannot
# be collected is told by the tests themselves.
compiled: $(VENV)/ready
	@$(PYTEST) --collect-only -qq -p no:cacheprovider >/dev/null || true

# Figures about speed and memory; takes some minutes.
bench: $(VENV)/ready
	$(VENV)/bin/python -m benchmarks

# What a real lab leaves behind, after 20 runs and as many kills; takes half an hour.
trial: $(VENV)/ready
	$(VENV)/bin/python -m tests.trials.leftovers

$(VENV)/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "chaosrunner needs Python 3.11 or newer; say PYTHON=python3.12, for instance")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .coverage .*_cache
