# Every command that a person types. `make` alone lists them.

CARGO ?= cargo
# Where cargo puts what it builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Arguments for the demo: `make demo DEMO=--all` shows every engine and every contestant.
DEMO ?=
# Arguments for the comparison: `make compare COMPARE='--quick --output DIRECTORY'`.
COMPARE ?=

.PHONY: help build test test-kernels demo compare bench-check check fmt

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

build: ## Build spliced and the bench, optimised
	@scripts/install build
	$(CARGO) build --release --package spliced --package splice-bench

test: ## Run every test; as root none is left out
	@scripts/install build
	@OPTIONAL_WITHOUT_ROOT=1 scripts/install test
	@[ "$$(id -u)" -eq 0 ] || echo "not root: tests that need it are left out, each says so"
	$(CARGO) test --workspace

test-kernels: ## Boot Linux 6.1 and 6.12 in QEMU and run there what depends on the kernel; 2 minutes
	@scripts/test-kernels

demo: ## Show in less than a minute what spliced is good for (root)
	@[ "$$(id -u)" -eq 0 ] || { echo "make demo: it makes network namespaces; run it as root" >&2; exit 1; }
	@scripts/install demo
	@$(MAKE) --no-print-directory build
	$(TARGET)/release/splice-bench demo --spliced $(TARGET)/release/spliced $(DEMO)

compare: ## Run the full comparison with confidence intervals, some 20 minutes (root)
	@[ "$$(id -u)" -eq 0 ] || { echo "make compare: it makes network namespaces; run it as root" >&2; exit 1; }
	@ENVOY_DIRECTORY="$(TARGET)/envoy" scripts/install demo compare
	@$(MAKE) --no-print-directory build
	PATH="$(abspath $(TARGET))/envoy/bin:$$PATH" $(TARGET)/release/splice-bench compare --spliced $(TARGET)/release/spliced $(COMPARE)

bench-check: ## Check the bench against known figures, and spliced against its targets (root)
	@[ "$$(id -u)" -eq 0 ] || { echo "make bench-check: it makes network namespaces; run it as root" >&2; exit 1; }
	@scripts/install check demo
	@$(MAKE) --no-print-directory build
	$(TARGET)/release/splice-bench check --spliced $(TARGET)/release/spliced

check: ## Formatting, lints, layers and docs, without a warning
	@scripts/install build lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- --deny warnings
	$(CARGO) run --quiet --package layers
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --workspace --no-deps --document-private-items

fmt: ## Format the code
	$(CARGO) fmt --all

# Last: the first target is what `make` alone does.
include bpf.mk
