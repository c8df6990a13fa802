# Every target sets up what it needs first; `make run` is the place to start.

export PATH := $(HOME)/.cargo/bin:$(PATH)
SETUP := sh scripts/setup.sh

.DEFAULT_GOAL := help
.PHONY: help run setup-test setup-kernels test check soak bench bench-spine bench-tables bench-cluster bench-walls bench-hosts bench-internet lint fuzz test-kernels build clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' Makefile

build: ## Build the release binary, target/release/sluice
	@$(SETUP) build
	@sh scripts/build.sh -p sluice

run: ## Bring up a cloud in network namespaces, show that it works, stay until Ctrl-C
	@$(SETUP) build run
	@sh scripts/build.sh -p sluice
	@exec "$${CARGO_TARGET_DIR:-target}/release/sluice" lab run

setup-test: # Install what the tests need
	@$(SETUP) build run test fuzz

test: setup-test ## Run all tests: format, lints, units, properties, fixtures, a short fuzz, scenarios
	@sh scripts/test.sh all

check: setup-test ## Run what shows most mistakes within minutes: format, lints, units, fixtures
	@sh scripts/test.sh check

soak: setup-test setup-kernels ## Run what takes hours: many seeds, many kills, long fuzzing, long streams, QEMU guests
	@sh scripts/test.sh soak

lint: ## Check format and lints only
	@$(SETUP) build
	cargo fmt --all --check
	@sh scripts/check-format.sh
	cargo clippy --workspace --all-targets -- -D warnings

bench: ## Measure every claim beside its peer in one run; results in bench/RESULTS.md
	@SLUICE_BENCH_RUN=$$(date -u +%Y-%m-%dT%H:%MZ) $(MAKE) --no-print-directory bench-spine bench-tables bench-cluster bench-walls bench-hosts bench-internet

bench-spine: ## Measure the gateway program, the vSwitch, VM traffic and programming time
	@$(SETUP) build run bench
	@sh scripts/build.sh -p sluice -p sluice-bench-spine
	"$${CARGO_TARGET_DIR:-target}/release/sluice-bench-spine" --binary "$${CARGO_TARGET_DIR:-target}/release/sluice"

bench-tables: ## Measure the tables beside the kernel's maps and DPDK's structures
	@$(SETUP) build bench
	@sh scripts/build.sh -p sluice-bench-tables
	"$${CARGO_TARGET_DIR:-target}/release/sluice-bench-tables"

bench-cluster: ## Measure gateway clusters: placement, pushes, balance, detection, direct paths, failures
	@$(SETUP) build run bench
	@sh scripts/build.sh -p sluice -p sluice-bench-cluster
	"$${CARGO_TARGET_DIR:-target}/release/sluice-bench-cluster" --binary "$${CARGO_TARGET_DIR:-target}/release/sluice"

bench-walls: ## Measure security groups beside nftables and conntrack
	@$(SETUP) build run bench
	@sh scripts/build.sh -p sluice -p sluice-bench-walls
	"$${CARGO_TARGET_DIR:-target}/release/sluice-bench-walls" --binary "$${CARGO_TARGET_DIR:-target}/release/sluice"

bench-hosts: ## Measure what hosts learn, how soon a new instance is reached, elastic credit and live migration
	@$(SETUP) build run
	@sh scripts/build.sh -p sluice -p sluice-scenarios -p sluice-bench-hosts
	"$${CARGO_TARGET_DIR:-target}/release/sluice-bench-hosts" --binary "$${CARGO_TARGET_DIR:-target}/release/sluice" \
		--probe "$${CARGO_TARGET_DIR:-target}/release/sluice-probe"

bench-internet: ## Measure source NAT and its failover beside nftables, conntrack, keepalived and conntrackd
	@$(SETUP) build run bench
	@sh scripts/build.sh -p sluice -p sluice-scenarios -p sluice-bench-internet
	"$${CARGO_TARGET_DIR:-target}/release/sluice-bench-internet" --binary "$${CARGO_TARGET_DIR:-target}/release/sluice" \
		--probe "$${CARGO_TARGET_DIR:-target}/release/sluice-probe"

fuzz: ## Fuzz the packet programs and all decoders for FUZZ_SECONDS (default 600) in all
	@$(SETUP) build fuzz
	@sh scripts/fuzz.sh

setup-kernels: # Install what `test-kernels` needs
	@$(SETUP) build kernels

test-kernels: setup-kernels ## Load the programs on Debian 12's own kernel, booted under qemu
	@sh scripts/test-kernels.sh

clean: ## Remove the lab of `make run`, if it still runs, and everything built
	@if [ "$$(id -u)" -eq 0 ]; then for profile in release debug; do \
		sluice="$${CARGO_TARGET_DIR:-target}/$$profile/sluice"; \
		if [ -x "$$sluice" ]; then "$$sluice" lab down || true; break; fi; done; fi
	cargo clean
	rm -rf bench/out
