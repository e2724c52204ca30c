# The one entry: everything a person or CI runs is a target here, and each does its own set-up.
#
#   make demo    the main job: trains a small model on two ranks
#   make test    everything CI runs
#   make check   its fast part
#   make bench   Corro beside Gloo, Open MPI and MPICH
#   make help    all targets

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
FUZZ_SECONDS ?= 3

.PHONY: help demo test check lint unit fuzz gen bench deep clean

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: ## train a small model on two processes, then on four threads
	$(CARGO) build --release --quiet -p corro-example
	./target/release/corro-example --ranks 2
	./target/release/corro-example --ranks 4 --threads

test: lint unit fuzz ## everything CI runs
	@echo "make test: all passed"

check: lint ## the fast part of the tests
	$(CARGO) test --workspace --lib --bins

lint: ## format, clippy, floors, generated files
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	python3 scripts/floors.py
	$(CARGO) run --quiet -p corro-core --example environment_docs | diff -u docs/environment.md - \
		|| { echo "docs/environment.md is stale: run 'make gen'"; exit 1; }

unit: ## unit, conformance, fault and process tests
	$(CARGO) test --workspace

fuzz: ## every decoder, for FUZZ_SECONDS each
	fuzz/run $(FUZZ_SECONDS)

gen: ## remake generated files
	$(CARGO) run --quiet -p corro-core --example environment_docs > docs/environment.md.new
	mv docs/environment.md.new docs/environment.md

bench: ## measure beside the peers; needs a quiet machine, and root for the two-host part
	$(CARGO) build --release --quiet -p corro-bench
	bench/setup
	.venv-bench/bin/python bench/collectives.py
	.venv-bench/bin/python bench/two_hosts.py

deep: ## longer fuzzing, and Miri where a nightly toolchain is installed
	fuzz/run 60
	@if $(CARGO) +nightly miri --version >/dev/null 2>&1; then \
		$(CARGO) +nightly miri test -p corro-transport ring; \
	else echo "make deep: Miri is not installed, left out"; fi

clean: ## remove what was built
	rm -rf target fuzz/target .venv*
