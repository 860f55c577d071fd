# Every target sets itself up from nothing: a .venv of its own, the locked packages, the compiled kernel.
# PYTHON=python3.12 chooses the interpreter, CXX=g++ another compiler than the one from the lock.

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench bench-spark chaos soak simulate mutants fuzz fuzz-http fuzz-kernel sanitize release clean lock kernel spark pages
.PHONY: browser promtool clang
MAKEFLAGS += --no-print-directory

VENV := .venv
# Many tests start `samovar` anew: its modules are compiled once, whatever the machine says.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RECENT = import sys; sys.exit(sys.version_info < (3, 11))
ARGS ?=
WORKERS ?= 2

help: ## this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1#\2/p' $(MAKEFILE_LIST) | while IFS='#' read -r name text; do printf '%-10s %s\n' "$$name" "$$text"; done

demo: kernel $(if $(KAFKA),spark) ## both services with generated traffic, until Ctrl-C; KAFKA=1 for a local broker
	@$(BIN)/samovar demo $(if $(KAFKA),--kafka) $(ARGS)

test: kernel spark ## all tests, on WORKERS=2 processes; ARGS="-k name" chooses some
	@$(BIN)/python -m pytest -q -n $(WORKERS) $(ARGS)

lint: $(INSTALLED) spark ## ruff, mypy, layers
	@failed=; \
	echo "ruff check";  $(BIN)/ruff check --quiet . || failed=1; \
	echo "ruff format"; $(BIN)/ruff format --quiet --check . || failed=1; \
	echo "mypy";        $(BIN)/mypy --no-error-summary samovar tests $(wildcard benchmarks/*.py) || failed=1; \
	echo "layers";      $(BIN)/lint-imports --no-logo || failed=1; \
	test -z "$$failed"

format: $(INSTALLED) ## rewrite the sources in the house format
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

bench: kernel ## measure, also against Kafka Streams; ARGS="--full" for the long parts too
	@$(BIN)/python -m benchmarks all $(ARGS)

bench-spark: kernel spark ## restore, rebuild and sizes on Spark, next to the local engine; ARGS="--records N --events N --sizes 1,5"
	@$(BIN)/python -m benchmarks spark $(ARGS)

chaos: kernel spark ## kills on the embedded log, one broker and three, and rebalances, in rounds; goes on where it was stopped
	@$(BIN)/python -m tests.faults.chaos --embedded $(or $(KILLS),500) --kafka $(or $(KAFKA_KILLS),150) \
	  --three-brokers $(or $(CLUSTER_KILLS),50) --network $(or $(NETWORK_FAULTS),60) --rebalances $(or $(REBALANCE_S),60) \
	  $(if $(SEED),--seed $(SEED))

soak: kernel ## a service at half load for MINUTES=30, or at RATE=n: whether memory, stores or latency grow; PLOT=FILE draws it
	@$(BIN)/python -m benchmarks soak --minutes $(or $(MINUTES),30) $(if $(RATE),--rate $(RATE)) \
	  --json build/soak.json --plot $(or $(PLOT),build/soak.svg)

simulate: kernel ## histories from seeds (SEEDS=300), going on where it was stopped; SEED=n TRACE=1 shows one step by step
	@$(BIN)/python -m tests.simulation --workers $(WORKERS) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),300) --resume) \
	  $(if $(FIRST),--first $(FIRST)) $(if $(TRACE),--trace) $(if $(SHRINK),--shrink) $(if $(PLANTED),--planted $(PLANTED))

mutants: kernel ## small faults put into the code (SAMPLE=200 of them, or MODULE=tasks/input/source), which tests or SEEDS=150 must notice
	@$(BIN)/python -m tests.mutants --workers $(WORKERS) --sample $(or $(SAMPLE),200) --seeds $(or $(SEEDS),150) \
	  $(if $(MODULE),--module $(MODULE)) $(if $(ONLY),--only $(ONLY)) $(if $(AGAIN),--again) $(if $(LIST),--list)

fuzz-http: kernel ## 5,000 requests made up from the API's description; SAMOVAR_FUZZ_REQUESTS=n for another number
	@SAMOVAR_FUZZ_REQUESTS=$${SAMOVAR_FUZZ_REQUESTS:-5000} $(BIN)/python -m pytest -q --timeout 0 tests/service/http/test_fuzz.py

fuzz: kernel ## property tests with 100,000 examples each; SAMOVAR_EXAMPLES=n for another number
	@SAMOVAR_EXAMPLES=$${SAMOVAR_EXAMPLES:-100000} $(BIN)/python -m pytest -q --timeout 0 -m hypothesis $(ARGS)

sanitize: kernel clang ## tests of the kernel with address and undefined behaviour sanitizers; ARGS="tests/x.py" chooses some
	@SAMOVAR_EXAMPLES=$${SAMOVAR_EXAMPLES:-50} $(BIN)/python -m tests.native.sanitize $(ARGS)

fuzz-kernel: kernel clang ## coverage-guided fuzzing of the kernel, SECONDS=60 each target; TARGETS="json avro rows program"
	@$(BIN)/python -m tests.native.fuzz $(or $(SECONDS),60) $(TARGETS)

release: kernel pages ## the source archive and wheels of a release in dist/, checked, and tried in a clean environment
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-release.lock
	@$(BIN)/python deploy/release.py

clean: ## remove everything that make made
	@rm -rf $(VENV) build dist *.egg-info samovar/*.egg-info native/_kernel.so native/_kernel.hash service/http/web/static/_editor.*
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Asked for by name it must work; for the others the pages also have a plain text field in place of the editor.
pages: $(INSTALLED) ## the editor of the pages, bundled from the npm registry
	@$(BIN)/python service/http/web/editor/build.py $(if $(filter pages,$(MAKECMDGOALS)),,--optional)

demo test: pages
test: browser promtool clang

lock: ## choose the newest allowed versions again and write the locks; UPGRADE= keeps what still fits
	@rm -rf build/lock && $(call find_python) -m venv build/lock && build/lock/bin/python -m pip install --quiet uv
	@$(call lock_file,requirements.lock,pyproject.toml --group dev $(UPGRADE))
	@$(call lock_file,requirements-spark.lock,pyproject.toml --extra spark --constraint requirements.lock)
	@$(call lock_file,requirements-release.lock,--group release --constraint requirements.lock)
	@rm -rf build/lock

UPGRADE = --upgrade
define lock_file
head -1 requirements.lock > build/lock/head && cp $(1) build/lock/new 2>/dev/null; \
build/lock/bin/uv pip compile $(2) --universal --python-version 3.11 --quiet --generate-hashes --no-header \
  --no-emit-index-url --no-emit-find-links --output-file build/lock/new > /dev/null && cat build/lock/head build/lock/new > $(1)
endef

# ---------------------------------------------------------------- setting up

# The jobs on Spark; and the Ivy inside it, by which a Kafka broker's jars come where there is no Maven.
spark: $(VENV)/.spark

$(VENV)/.spark: $(INSTALLED) requirements-spark.lock
	@echo "setup: installing the packages of requirements-spark.lock"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-spark.lock
	@touch $@

# Debian's chromium, for the tests of the pages: installed where that is allowed, else it says how.
browser: $(INSTALLED)
	@$(BIN)/python -m tests.browser.chromium

# Prometheus' promtool, for the tests of the alarms: fetched where that can be, else it says how.
promtool: $(INSTALLED)
	@$(BIN)/python -m tests.support.promtool

# clang with its sanitizers and fuzzer, for the tests of the kernel: installed where that is allowed, else it says how.
clang: $(INSTALLED)
	@$(BIN)/python -m tests.native.clang

kernel: $(INSTALLED)
	@$(BIN)/python native/build.py

# Only when what is to be installed has changed. The editable install is for the `samovar` command and its metadata.
$(INSTALLED): requirements.lock pyproject.toml setup.py
	@python=$(call find_python); \
	test -x $(BIN)/python || { echo "setup: creating $(VENV)"; "$$python" -m venv $(VENV); }
	@echo "setup: installing the packages of requirements.lock"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python native/build.py
	@echo "setup: installing samovar itself"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

define find_python
$$(for one in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	if "$$one" -c '$(RECENT)' 2>/dev/null; then echo "$$one"; exit; fi; done; \
	echo "setup: no Python 3.11 or newer found. Install one, or say where it is: make PYTHON=/path/to/python3" >&2; \
	echo false)
endef
