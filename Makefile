# make run     a broker on tcp://127.0.0.1:1883; pass flags as in: make run ARGS="--listen tcp://0.0.0.0:1883"
# make test    everything that must hold: ruff, mypy, all tests, and some of them on the compiled build
#              without the fast lane; installs what they need
# make check   the quick part of it: ruff and mypy
# make wheel   a compiled wheel for this Python and machine, in dist/: see docs/compiled.md
# make test-compiled   all tests on the compiled build
# make test-readable   all tests without the fast lane
# make clean   remove what the others made

PYTHON ?= python3
# Three processes for two processors: many tests wait. loadgroup: those of spark/ run in one, on one JVM.
PYTEST_ARGS ?= -n 3 --dist loadgroup
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Of the tests those that show best whether compiling changed anything.
COMPILED_TESTS := $(addprefix tests/,test_build.py packet topic session lane hook conformance)

.PHONY: run test check compiled wheel test-compiled test-readable clean
.DEFAULT_GOAL := run

run: $(VENV)/.run
	@exec $(BIN)/pybroker $(ARGS)

test:
	PYTHON=$(PYTHON) tests/install.sh
	$(MAKE) --no-print-directory -j 2 check compiled
	$(BIN)/python -m pytest tests $(PYTEST_ARGS)
	PYBROKER_CAPACITY_FAST_LANE=false tests/compiled.sh $(PYTEST_ARGS) $(COMPILED_TESTS)

test-compiled: compiled
	tests/compiled.sh $(PYTEST_ARGS) tests

test-readable: $(VENV)/.test
	PYTHON=$(PYTHON) tests/install.sh
	PYBROKER_CAPACITY_FAST_LANE=false $(BIN)/python -m pytest tests $(PYTEST_ARGS)

compiled: $(VENV)/.test
	PYTHON=$(PYTHON) tests/install.sh
	tests/compile.sh

wheel: | $(BIN)/python
	PYBROKER_COMPILE=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .pytest_cache .mypy_cache .ruff_cache benchmarks/.bench_cache tests/end_to_end/js/node_modules
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(PIP) --editable .
	touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[test,uvloop]'
	touch $@ $(VENV)/.run

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pybroker needs Python 3.11 or later: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "no venv module: on Debian, apt-get install python3-venv" >&2; exit 1; }
