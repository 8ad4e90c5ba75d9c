# Every target sets up what it needs on a machine with Python 3.11 or newer.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SPARK  := $(VENV)/.installed-spark
STATE  ?= .epochmq

.PHONY: install install-spark run stop lint test soak bench lock clean

install: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "EpochMQ needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $(STAMP)

# What the audit needs, some 900 MB; only what checks or runs it waits for that.
install-spark: $(SPARK)

$(SPARK): $(STAMP) requirements-spark.lock
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-spark.lock
	@touch $(SPARK)

run: install
	$(BIN)/epochmq up -f examples/orders.yaml --state $(STATE)

stop: install
	$(BIN)/epochmq down --state $(STATE)

lint: install-spark
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tools/purity.py
	$(BIN)/mypy

test: install-spark
	$(BIN)/python tools/run_tests.py test

soak: install-spark
	$(BIN)/python tools/run_tests.py soak

bench: install
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.controllers
	$(BIN)/python -m tests.benchmarks.replica_groups

# Re-resolves the lock file from pyproject.toml; run it after changing a dependency.
lock: install
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --python-version 3.11 --extra dev \
	    pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --python-version 3.11 --extra spark \
	    -c requirements.lock pyproject.toml -o requirements-spark.lock

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
