# Every target sets up what it needs on a machine with Python 3.11 or newer.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SPARK  := $(VENV)/.installed-spark
STATE  ?= .epochmq
ROOM   ?=
# Thousands of processes of the tests would compile the same modules again, a second each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install install-spark run stop quick lint test soak mutants bench docs release kube kube-down lock clean

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

# The inner loop of a change: what can be checked in a minute or two, of the whole tree or of one room (ROOM=store).
quick: install
	$(BIN)/python -m tools.quick $(ROOM)

# Where install-spark has not run, mypy does not know the types of Spark and pandas. `make test` knows them.
lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tools.purity
	$(BIN)/mypy

test: install-spark
	$(BIN)/python tools/run_tests.py test

soak: install-spark
	$(BIN)/python tools/run_tests.py soak

bench: install-spark
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.controllers
	$(BIN)/python -m tests.benchmarks.replica_groups
	$(BIN)/python -m tests.benchmarks.audit
	$(BIN)/python -m tests.benchmarks.cold_backlog
	$(BIN)/python -m tests.benchmarks.new_queues
	$(BIN)/python -m tests.benchmarks.startup
	$(BIN)/python -m tests.benchmarks.pending_timers
	$(BIN)/python -m tests.benchmarks.acting
	$(BIN)/python -m tests.benchmarks.dledger_groups
	$(BIN)/python -m tests.benchmarks.sources

# The documentation as a site in build/site.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site; to read it with its search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

# What a release consists of, in build/release: wheel, sources, chart, images (by buildah, on the image BASE), bills of
# materials, checksums.
release: install
	$(BIN)/python -m tools.release $(if $(BASE),--base $(BASE))

# How many of 300 single-operator mutants of the packages that store messages the tests detect; part of soak.
mutants: install
	$(BIN)/python -m tools.mutants

# A real Kubernetes on this machine to play with (root, Linux, Go; NODES=3 for three nodes); it stays until kube-down.
kube: install
	$(BIN)/python -m tests.kubernetes.testbed up $(NODES)

kube-down: install
	$(BIN)/python -m tests.kubernetes.testbed down

# Re-resolves the lock files from pyproject.toml; run it after changing a dependency. The images are built from
# those for the runtime, the operator, the audit and the build; these agree with requirements.lock. The S3 server of
# the tests has its own environment, because its packages contradict the operator's.
COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11
BUILD_REQUIRES := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")

lock: install
	$(COMPILE) --extra dev pyproject.toml -o requirements.lock
	$(COMPILE) -c requirements.lock pyproject.toml -o requirements-runtime.lock
	$(COMPILE) -c requirements.lock --extra operator pyproject.toml -o requirements-operator.lock
	$(COMPILE) -c requirements.lock --extra spark pyproject.toml -o requirements-spark.lock
	echo 'moto[server]==5.2.5' | $(COMPILE) - -o requirements-s3-server.lock
	$(BIN)/python -c '$(BUILD_REQUIRES)' | $(COMPILE) -c requirements.lock - -o requirements-build.lock

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
