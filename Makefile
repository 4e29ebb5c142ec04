# make demo    install what is missing, build, and show Weir switching real traffic
# make test    install what is missing, build, and run every test
# make bench   run the benchmarks and print a table
#
# The demo and the functional tests make network namespaces and need root.

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)
CARGO ?= cargo
# Seconds for each fuzz target within `make test`.
FUZZ_SECONDS ?= 10
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: all build demo test lint unit fuzz functional bench clean

all: build

build:
	@scripts/setup.sh build
	$(CARGO) build --release --locked --bin weir

demo:
	@scripts/setup.sh demo
	$(CARGO) build --release --locked --bin weir
	@WEIR=$(TARGET)/release/weir scripts/demo.sh

test:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory lint unit fuzz functional

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

unit:
	$(CARGO) test --locked --workspace --quiet --no-fail-fast
	# The test of tests once more, with cases enough to find a field that is missing from a mask.
	PROPTEST_CASES=1500 $(CARGO) test --locked --quiet -p weir-ofproto --lib switch_equals_reference

fuzz:
	scripts/fuzz.sh $(FUZZ_SECONDS)

functional:
	$(CARGO) build --release --locked --bin weir
	WEIR=$(abspath $(TARGET))/release/weir .venv/bin/pytest tests $(PYTEST_ARGS)

bench:
	@scripts/setup.sh build
	@scripts/bench.py
	$(CARGO) build --release --locked --bin weir
	@tests/performance/loop.py --weir $(TARGET)/release/weir

clean:
	$(CARGO) clean
	rm -rf .venv fuzz/target
