# Every target sets up what it needs: `make demo` and `make test` work on a fresh checkout.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TESTS ?= tests
# `make check`: the tests that need no framework, without the longest of them.
CHECK_VENV := .venv-check
CHECK_STAMP := $(CHECK_VENV)/.installed
CHECK := $(addprefix tests/,base work search graph cluster device plan costs/models report runtime conformance cli egraph equations rulemaking/rulegen driver/test_stage.py driver/test_final_race.py \
	frontends test_errors.py test_docs.py test_encodings.py)
CHECK_WITHOUT := $(addprefix --deselect=tests/,cluster/test_slurm_daemons.py cli/test_optimize.py cli/test_rewrite.py cli/test_faults.py cli/test_throughput.py \
	plan/test_plan.py::test_plans_round_trip_through_json \
	egraph/extraction/test_methods.py::test_anytime_leaves_the_greedy_behind_where_a_proof_takes_too_long frontends/test_bad_input.py::test_any_flipped_bytes_load_or_are_refused)
# Each with a stretch of the tests of its own; who is done early takes over from another. One more than cores: tests wait for processes.
WORKERS ?= 3

# Hundreds of processes of the tests import the house: they read its bytecode, whatever the caller's environment says of keeping any.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo demo-c demo-train demo-plan demo-cluster check test test-all test-as test-emulated test-arm fuzz-loaders test-real test-exporters conformance faults soak replay fuzz lint docs bench capabilities tables clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,demo]'
	touch $(STAMP)

install: $(STAMP) ## virtual environment with every backend

demo: $(STAMP) ## the main job on a real model: sentence embeddings, measured, verified, explained
	$(BIN)/python -m examples.demo

demo-c: $(STAMP) ## the same model as a C library: nearest neighbours from a program without Python (needs CMake and a C compiler)
	$(BIN)/python -m examples.demo_c

demo-train: $(STAMP) ## eight small networks trained as one on a real data set
	$(BIN)/bricolage train fuse examples/demo_train/cnn.toml

demo-plan: $(STAMP) ## a small Transformer planned and run on four processes; writes out/demo-plan/report.html
	mkdir -p out
	$(BIN)/bricolage train plan examples/demo_plan/step.toml -o out/demo-plan --seconds 0.5
	$(BIN)/bricolage train run out/demo-plan --seconds 5

demo-cluster: $(STAMP) ## a history of jobs on a cluster of two kinds of devices, under every policy; writes out/demo-cluster.html
	mkdir -p out
	$(BIN)/bricolage cluster replay examples/demo_cluster/history.csv --cluster examples/demo_cluster/cluster.toml -o out/demo-cluster.html

$(CHECK_STAMP): pyproject.toml constraints.txt
	test -x $(CHECK_VENV)/bin/python || $(PYTHON) -m venv $(CHECK_VENV)
	$(CHECK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . pytest pytest-xdist hypothesis
	touch $(CHECK_STAMP)

check: $(CHECK_STAMP) ## the tests that need no framework, in an environment without any (1 to 3 minutes on 2 cores)
	$(CHECK_VENV)/bin/python -m pytest $(CHECK) $(CHECK_WITHOUT) -m "not slow" -n $(WORKERS) --dist worksteal

test: $(STAMP) ## all tests but the slow ones (7 to 24 minutes on 2 cores)
	$(BIN)/python -m pytest $(TESTS) -m "not slow" -n $(WORKERS) --dist worksteal

test-all: $(STAMP) ## the slow tests too: whole conformance suites, all of every mass of parameters, big models (weekly)
	BRICOLAGE_NATIVE_LEVEL=3 $(BIN)/python -m pytest $(TESTS) --hypothesis-profile=new

test-as: $(STAMP) ## what depends on the processor, as if this were a smaller one: PROCESSOR=avx2 (TESTS=tests for all)
	$(BIN)/python -m benchmarks.processor $(or $(PROCESSOR),avx2) -- $(BIN)/python -m pytest \
		$(if $(filter-out file,$(origin TESTS)),$(TESTS),tests/backends tests/native tests/device tests/quantization tests/driver tests/lowering tests/api) -m "not slow" -n $(WORKERS) --dist worksteal

# Numpy's own kernels for AVX2 are left out: some of them end in a fault of QEMU 7.2. By malloc, GLib's locks are free in a fork.
test-emulated: $(STAMP) ## our engine on emulated processors, without AVX and with AVX2 alone (needs Debian's qemu-user; weekly)
	for processor in Nehalem EPYC-Rome-v2; do \
		env -u OPENBLAS_CORETYPE NPY_DISABLE_CPU_FEATURES=X86_V3 G_SLICE=always-malloc qemu-x86_64 -cpu $$processor $(BIN)/python -m pytest tests/native tests/device -m "not slow" -n 0 || exit 1; \
	done

test-arm: $(STAMP) ## the engine and the whole product on emulated 64-bit Arm (needs Debian's cross compiler, qemu-user, llvm-19, debootstrap, qemu-user-static; root; weekly)
	$(BIN)/python -m benchmarks.arm --output out/arm.json
	$(BIN)/python -m tests.arm out/arm

# INPUTS is a number over all runs (out/fuzz-loaders keeps count); MINUTES a time of this one.
fuzz-loaders: $(STAMP) ## hostile artifacts, plans, models and inputs: INPUTS=1000000 or MINUTES=30
	$(BIN)/python -m benchmarks.fuzz_loaders $(if $(MINUTES),--minutes $(MINUTES),--inputs $(or $(INPUTS),1000000))

test-real: $(STAMP) ## trained networks that packages on PyPI ship: right, nothing dropped, not slower (an hour or two)
	$(BIN)/python -m benchmarks.real

test-exporters: $(STAMP) ## TensorFlow's and Paddle's exporters, as docs/manual/exporters.md says (installs them in out/exporters)
	rm -rf out/exporters
	$(BIN)/python -m tests.exporters out/exporters

conformance: $(STAMP) ## the ONNX backend suite through bricolage and through ONNX Runtime's own backend (10 to 30 minutes)
	$(BIN)/python -m benchmarks.conformance

faults: $(STAMP) ## 500 faults at random moments (kills, power cuts, full disks ...); stops and goes on at any time
	nice -n 19 $(BIN)/python -m tests.faults

soak: $(STAMP) ## 1,000,000 inferences of one artifact from 4 threads; forks, signals, exits
	$(BIN)/python -m tests.soak

replay: $(STAMP) ## whether a change decides anything differently: claims, candidates, rewrites, fusion, C, placements
	$(BIN)/python -m benchmarks.replay

fuzz: $(STAMP) ## random models, regions and rule contexts for MINUTES=10; goes on where the last run ended, findings in out/fuzz
	$(BIN)/python -m benchmarks.fuzz --minutes $(or $(MINUTES),10)

lint: $(STAMP) ## ruff, clang-format, mypy, the layers, the site with its links
	$(BIN)/ruff check src benchmarks examples tests
	$(BIN)/ruff format --check src benchmarks examples tests
	$(BIN)/clang-format --dry-run --Werror src/bricolage/native/c/*.h
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean

docs: $(STAMP) ## write what is generated of the pages, and build the site into out/site
	$(BIN)/python -m tests.test_docs
	$(BIN)/python -m tests.manual.write
	$(BIN)/python -m benchmarks.tools.results_page
	$(BIN)/bricolage rules list --markdown > docs/reference/rules.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean
	@echo the site is in out/site

bench: $(STAMP) ## the eleven workloads at every precision, interleaved against every backend
	$(BIN)/python -m benchmarks.latency --workload all --precision all --output out/latency.json

capabilities: $(STAMP) ## measure what each backend gets right (hours)
	$(BIN)/python -m benchmarks.capabilities --backend all --docs

tables: $(STAMP) ## fails where a capability table is older than our lowerings that it rests on, and says how to make it again
	$(BIN)/python -m benchmarks.capabilities --stale

clean: ## remove what was built, not what was learnt
	rm -rf $(VENV) $(CHECK_VENV) build out *.egg-info src/*.egg-info
