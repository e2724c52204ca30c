# The one entry: everything a person or CI runs is a target here, and each does its own set-up.
#
#   make demo    the main job: trains a small model on two processes
#   make test    everything CI runs
#   make check   its fast part
#   make bench   Corro beside Gloo, Open MPI and MPICH
#   make help    all targets

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
FUZZ_SECONDS ?= 60
RUNS ?= 10
# What CI compiles it compiles once: what cargo keeps to be quicker the next time costs time and gigabytes the first time.
ifdef CI
export CARGO_INCREMENTAL := 0
endif
# Programs that make files. All are built at once, with what the tests use: one alone would compile much of it anew.
EXAMPLES = $${CARGO_TARGET_DIR:-target}/debug/examples
# Where tests say how long each of them took.
REPORTS = target/rust-tests.xml target/pytest-new.xml target/pytest-tf.xml target/pytest-jax.xml target/pytest-mxnet.xml
# The wheel of the tests: for this machine, of the same build as the other tests.
TEST_WHEEL = CORRO_GLIBC=here CORRO_PROFILE=dev scripts/wheel

.PHONY: help demo test check lint audit unit python fuzz gen wheel sdist wheel-aarch64 aarch64 docs versions gpu homes bench bench-gpu flaky sanitize deep clean

help: ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: ## train on handwritten digits with PyTorch, on two processes
	$(TEST_WHEEL)
	scripts/python_install new
	.venv-test/bin/corro run -np 2 examples/torch/digits.py

test: lint unit python ## everything CI runs
	@python3 scripts/slowest.py $(REPORTS)
	@echo "make test: all passed"

check: lint ## the fast part of the tests
	python3 scripts/rust_test.py -- --lib --bins

lint: ## format, clippy, documentation, spelling, floors, table of crates, circles, sizes, generated files
	$(CARGO) fmt --all --check
	scripts/spelling
	python3 scripts/floors.py
	python3 scripts/crates_table.py
	python3 scripts/circles.py
	python3 scripts/sizes.py
	python3 scripts/one_build.py
	python3 scripts/horovod_modules.py --check
	scripts/ptx --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	$(CARGO) build --quiet --workspace --examples
	$(EXAMPLES)/environment_docs | diff -u docs/environment.md - \
		|| { echo "docs/environment.md is stale: run 'make gen'"; exit 1; }
	$(EXAMPLES)/man_pages target/man
	diff -ru docs/man target/man || { echo "docs/man is stale: run 'make gen'"; exit 1; }
	python3 scripts/audit.py --quick

audit: ## licences and known weaknesses of what we depend on; needs their databases
	python3 scripts/audit.py

unit: ## unit, conformance, fault and process tests, and the examples in the documentation
	scripts/mpi_env
	python3 scripts/rust_test.py
	$(CARGO) test --workspace --doc --quiet

python: ## the Python packages: lint, types, tests on 1, 2 and 4 ranks with the newest torch, TensorFlow, Keras and JAX, and MXNet
	$(TEST_WHEEL)
	scripts/python_test new
	python3 scripts/rust_test.py --report target/rust-tests-torch.xml --ignored torchrun
	scripts/python_test tf
	scripts/python_test jax
	scripts/python_test mxnet

wheel: ## both wheels, for any Linux with glibc 2.17 or newer, into dist/
	scripts/wheel

sdist: ## both source packages, into dist/; checks that they have everything, and nothing else
	scripts/sdist

fuzz: ## every decoder fed with new inputs, for FUZZ_SECONDS each
	fuzz/run $(FUZZ_SECONDS)

flaky: ## all tests RUNS times beside four busy processes: how often what fails; WHAT="rust torch tensorflow jax mxnet"
	python3 scripts/flaky.py --runs $(RUNS) $(WHAT)

sanitize: ## the crates that move bytes, every access to memory checked
	scripts/sanitize address
	scripts/sanitize thread

gen: ## remake generated files
	$(CARGO) build --quiet --workspace --examples
	$(EXAMPLES)/environment_docs > docs/environment.md.new
	mv docs/environment.md.new docs/environment.md
	$(EXAMPLES)/man_pages docs/man
	$(EXAMPLES)/header > target/corro.h.new
	mv target/corro.h.new crates/corro-capi/include/corro.h
	python3 scripts/horovod_modules.py
	scripts/ptx

bench: ## measure beside the peers; needs a quiet machine, and root for the two-host part
	$(CARGO) build --release --quiet -p corro-bench
	./target/release/corro-engine-rounds
	$(CARGO) run --release --quiet -p corro-agreement --example scale
	bench/setup
	.venv-bench/bin/python bench/collectives.py
	.venv-bench/bin/python bench/two_hosts.py
	scripts/wheel
	scripts/python_install new
	.venv-test/bin/python bench/startup.py
	.venv-test/bin/python bench/python_ops.py
	.venv-test/bin/python bench/training.py
	.venv-test/bin/corro run -np 2 .venv-test/bin/python bench/trust.py
	.venv-test/bin/python bench/elastic.py
	scripts/python_install tf
	.venv-test-tf/bin/corro run -np 2 .venv-test-tf/bin/python bench/tensorflow_ops.py
	.venv-test-tf/bin/python bench/keras_fit.py
	bench/setup_jax
	.venv-bench-jax/bin/python bench/jax_ops.py

gpu: ## what needs an NVIDIA GPU, with ranks that share it; fails where there is none
	@python3 scripts/gpu_test.py check
	python3 scripts/gpu_test.py build
	python3 scripts/gpu_test.py run

bench-gpu: ## measure on a GPU beside Gloo and NCCL, under MPS and without it; fails where there is none
	@python3 scripts/gpu_test.py check
	python3 scripts/gpu_test.py build
	python3 scripts/gpu_test.py bench

homes: ## in the homes of other programs: Spark (needs Java 17), Ray, the real Prometheus server, real clusters of Slurm and Kubernetes (needs Go), images; fetches what it needs
	$(TEST_WHEEL)
	scripts/python_test spark
	scripts/python_test ray
	scripts/homes

wheel-aarch64: ## the same for 64-bit ARM, built here by zig, into dist/aarch64/
	CORRO_ARCH=aarch64 scripts/wheel

aarch64: wheel-aarch64 ## that wheel and the NEON kernels, tested under qemu-user (Debian or Ubuntu, as root)
	scripts/aarch64_test

docs: ## the documentation site, into docs/_build/html
	scripts/docs

versions: wheel ## the same wheel with an old torch, an old TensorFlow, an old JAX and an old Spark (needs Java 17), and with Python 3.12 where there is one
	scripts/python_test old
	scripts/python_test tf-old
	scripts/python_test jax-old
	scripts/python_test spark-old
	scripts/python_test 312

deep: fuzz sanitize audit sdist docs ## longer: fuzzing, sanitizers, source packages, the site, whole products, races, jobs that fail in all ways, GPU kernels compiled again, and Miri where a nightly toolchain is installed
	scripts/python_install new
	.venv-test/bin/python python/tests/failing/failing_jobs.py --runs 200
	CORRO_TEST_THOROUGH=1 python3 scripts/rust_test.py conformance
	python3 scripts/rust_test.py --report target/rust-tests-slow.xml --ignored slow_jobs
	CORRO_TEST_THOROUGH=1 scripts/python_test new
	CORRO_TEST_THOROUGH=1 scripts/python_test tf
	CORRO_TEST_THOROUGH=1 scripts/python_test jax
	CORRO_TEST_SCHEDULES=300000 python3 scripts/rust_test.py /races -- --release
	scripts/ptx --compare
	@if $(CARGO) +nightly miri --version >/dev/null 2>&1; then \
		$(CARGO) +nightly miri test -p corro-transport ring; \
	else echo "make deep: Miri is not installed, left out"; fi

clean: ## remove what was built
	rm -rf target fuzz/target .venv*
