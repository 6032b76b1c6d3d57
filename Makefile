# make demo | test | checked | lint | bench | compare | wheel | wheels | release | docs | clean
#
# All of it from a clean clone with Python >= 3.11, a C compiler and Java >= 17: what is missing is named before anything
# is installed (.ci/need).  Everything goes into .venv; pip's own configuration says where packages come from.
# What pip and the compiler say goes to build/*.log, and is shown when they fail.
# PYTHON=... chooses the interpreter, with an environment of its own (.venv-python3.13); JAVA_HOME the Java, VENV another
# place for the environment.

SHELL := /bin/sh
VENV ?= .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
PYTEST_ARGS ?=
BENCH_ARGS ?=
DEMO_ARGS ?=
LOGS ?= build

SOURCES := setup.py $(shell find fastbuf -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
STUBBED := $(subst /,.,$(basename $(shell find fastbuf -name '*.pyi')))
INSTALLED := $(VENV)/.fastbuf-installed
BUILT := $(VENV)/.fastbuf-built
DOCS := $(VENV)/.fastbuf-docs
CLASSES := build/spark-classes.jsa

# Spark's workers must be this environment's Python: they import fastbuf and fastbuf_spark.
export PYSPARK_PYTHON := $(abspath $(BIN))/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

# cython-lint calls pycodestyle by name.
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: help build demo test checked faults compat nightly debug-build tsan-build asan-build debug-test tsan-test asan-test lint format bench bench-smoke compare wheel sdist wheels release docs clean distclean need-build need-java

help:
	@sed -n '1,8p' Makefile

need-build:
	@sh .ci/need python compiler

need-java:
	@sh .ci/need python compiler java

$(INSTALLED): pyproject.toml | need-build
	@test -x $(BIN)/python || sh .ci/quiet "makes $(VENV)" $(LOGS)/venv.log "$$(sh .ci/need --python)" -m venv $(VENV)
	@sh .ci/quiet "installs what a build needs" $(LOGS)/pip.log \
	    $(BIN)/python -m pip install --quiet 'setuptools>=77' 'cython>=3.1' 'numpy>=1.26' wheel
	@# The extensions are compiled while the dependencies come.  FASTBUF_ONLY=none: of the package itself only the links.
	@sh .ci/quiet "compiles the extensions and installs what tests, demo and benches need: some minutes" \
	    $(LOGS)/install.log sh -c '$(BIN)/python setup.py --quiet build_ext --inplace & \
	    FASTBUF_ONLY=none $(BIN)/python -m pip install --quiet --no-build-isolation -e ".[benches,lint]"; \
	    installed=$$?; wait $$! && exit $$installed'
	@touch $@

$(BUILT): $(INSTALLED) $(SOURCES)
	@sh .ci/quiet "compiles what has changed" $(LOGS)/compile.log $(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

build: need-build $(BUILT)

demo: need-java $(BUILT)
	@$(BIN)/fastbuf demo $(DEMO_ARGS)

# Two at once; what has a Spark, or many processes and a clock, is in one of them (tests/conftest.py).
test: need-java $(BUILT) $(CLASSES)
	@echo "runs all tests, two at a time; those with Spark take most of the time (PYTEST_ARGS=tests/unit: without them)"
	@$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

$(CLASSES): .ci/archive_classes.py $(INSTALLED)
	@sh .ci/quiet "archives Spark's classes, so that it starts in half the time" $(LOGS)/classes.log $(BIN)/python $< $@ \
	    || echo "it will start without them"

# The tests of pools and exchange on a build with every check switched on, in a copy, so that the build in use stays as it
# is.  (The serializers' run under AddressSanitizer, which checks more: here they are what they are.)
debug-build: $(BUILT)
	rm -rf build/debug
	mkdir -p build/debug
	find setup.py pyproject.toml README.md LICENSE docs/reference fastbuf bindings tests -name __pycache__ -prune -o -type f -print0 \
	    | xargs -0 cp -p --parents -t build/debug
	cd build/debug/fastbuf && find memory flow exchange transports \( -name '*.so' -o -name '*.c' \) -delete
	cd build/debug && FASTBUF_DEBUG=1 FASTBUF_ONLY=fastbuf.memory,fastbuf.flow,fastbuf.exchange,fastbuf.transports \
	    $(abspath $(BIN))/python setup.py --quiet build_ext --inplace

# Most of it is waiting for what shall not come: so three at a time.
debug-test: debug-build
	cd build/debug && PYTHONPATH=bindings $(abspath $(BIN))/python -m pytest -p no:cacheprovider \
	    -n 3 tests/unit/memory tests/unit/flow tests/unit/exchange tests/unit/transports tests/contract $(PYTEST_ARGS)

# The shipped extensions under ThreadSanitizer and AddressSanitizer; FASTBUF_LONG=1 for the nightly size.
tsan-build: $(BUILT)
	PYTHON=$(BIN)/python .ci/sanitize build thread

asan-build: $(BUILT)
	PYTHON=$(BIN)/python .ci/sanitize build address

tsan-test: tsan-build
	PYTHON=$(BIN)/python .ci/sanitize test thread $(PYTEST_ARGS)

asan-test: asan-build
	PYTHON=$(BIN)/python .ci/sanitize test address $(PYTEST_ARGS)

# What looks at native code alone, and takes long.  It is recorded which code passed: CI leaves that to the night.
checked: $(BUILT)
	$(MAKE) debug-test tsan-test asan-test
	FASTBUF_NATIVE=1 $(BIN)/python -m pytest -n 2 tests/models tests/stress
	$(BIN)/python tests/native.py --record

# Faults planted at random places and strengths, and what is said of them; thresholds are tuned on seeds 0 to 9 alone.
# What needs all CPUs runs by itself, the rest two at a time.
FAULTS_ARGS ?= --seeds 10-29
faults: $(BUILT)
	@mkdir -p build
	@rm -f build/faults.jsonl
	@$(BIN)/python tests/faults $(FAULTS_ARGS) --without redos,gc_storm,neighbours,skew_and_gc --jobs 2 --out build/faults.jsonl
	@$(BIN)/python tests/faults $(FAULTS_ARGS) --only redos,gc_storm,neighbours,skew_and_gc --out build/faults.jsonl
	@$(BIN)/python tests/faults --merge --out build/faults.jsonl | tee build/faults.txt

# The tests that have a Spark, with the older ones that the binding takes; what those have not is skipped by its name.
PYSPARKS ?= 4.1.4 4.2.1
compat: $(PYSPARKS:%=compat-%)

compat-%: need-java $(BUILT)
	@sh .ci/quiet "installs PySpark $*" $(LOGS)/pyspark-$*.log \
	    $(BIN)/python -m pip install --quiet --upgrade --target build/pyspark-$* pyspark==$*
	PYTHONPATH=$(abspath build/pyspark-$*) $(BIN)/python -m pytest -n 2 tests/spark $(PYTEST_ARGS)

# What takes hours: all that CI leaves out (tests with the mark nightly), and the long variant of every test that has one.
nightly: need-java $(BUILT)
	$(MAKE) faults
	$(MAKE) bench-smoke
	FASTBUF_LONG=1 $(MAKE) test
	$(MAKE) compat
	FASTBUF_LONG=1 $(MAKE) debug-test tsan-test asan-test

lint: need-build $(BUILT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/cython-lint fastbuf
	$(BIN)/stubtest --concise --ignore-missing-stub --ignore-disjoint-bases --ignore-unused-allowlist --mypy-config-file pyproject.toml \
	    --allowlist .ci/stubtest.allow $(STUBBED)

format: $(BUILT)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Says first what will run and about how long.  One that fails stops no other, and the tables of the others come all the
# same; the exit code tells of it.
bench: need-java $(BUILT)
	@mkdir -p .benchmarks
	@$(BIN)/python -m pytest benches --benchmark-only --timeout=3600 --benchmark-json=.benchmarks/last.json $(BENCH_ARGS); \
	code=$$?; $(BIN)/python benches/report.py .benchmarks/last.json && exit $$code

bench-smoke: need-java $(BUILT)
	@mkdir -p .benchmarks
	FASTBUF_BENCH_SMOKE=1 SPARK_SUBMIT_OPTS=-XX:TieredStopAtLevel=1 $(BIN)/python -m pytest benches --benchmark-only --benchmark-json=.benchmarks/smoke.json $(BENCH_ARGS)
	$(BIN)/python benches/report.py .benchmarks/smoke.json

# The five flow controls against the same stories: three minutes, and a page of the docs with its plots.
compare: need-build $(BUILT)
	@$(BIN)/python benches/compare.py

wheel: need-build $(BUILT)
	$(BIN)/python -m build --no-isolation --outdir dist .

sdist: need-build $(INSTALLED)
	$(BIN)/python -m build --no-isolation --sdist --outdir dist .

# What a release consists of, looked at as whoever installs it would; nothing is uploaded (.ci/release).
release:
	@.ci/release

# Wheels for other machines, for CPython 3.11 to 3.14, audited and tried; PYTHON="python3.11 python3.13": for these alone.
wheels:
	@.ci/wheels

$(DOCS): $(INSTALLED)
	@sh .ci/quiet "installs mkdocs" $(LOGS)/docs.log $(BIN)/python -m pip install --quiet 'mkdocs>=1.6' 'mkdocstrings[python]>=0.25'
	@touch $@

docs: need-build $(BUILT) $(DOCS)
	FASTBUF_FOOTER="fastbuf $$($(BIN)/python .ci/notes.py --version)" $(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf build dist site .benchmarks .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find fastbuf -name '*.so' -delete
	find fastbuf -name '*.c' -delete
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -f $(BUILT)

distclean: clean
	rm -rf $(VENV)
