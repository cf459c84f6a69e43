# Every command that a person types. `make` alone lists them.

CARGO ?= cargo
# Where cargo puts what it builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Arguments for the demo: `make demo DEMO=--all` shows every engine and every contestant.
DEMO ?=
# Arguments for the comparison: `make compare COMPARE='--quick --output DIRECTORY'`.
COMPARE ?=
# Tests wait more than they compute.
TEST_THREADS ?= $(shell expr 3 \* $$(nproc))
# How long `make soak` looks for what is rare.
SOAK_MINUTES ?= 30
# Where `make install` puts the program, and the root of the tree that a package is made from.
PREFIX ?= /usr/local
DESTDIR ?=
INSTALLED := $(DESTDIR)$(PREFIX)

.PHONY: help build install uninstall test test-kernels soak demo compare bench-check check fmt

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

build: ## Build spliced and the bench, optimised
	@scripts/install build
	$(CARGO) build --release --package spliced --package splice-bench

install: ## Install spliced, its manual pages and completions (PREFIX, DESTDIR)
	@scripts/install build
	$(CARGO) build --release --package spliced --bin spliced --example manual
	install -D -m 755 $(TARGET)/release/spliced "$(INSTALLED)/bin/spliced"
	@pages=$$(mktemp -d) && trap 'rm -r "$$pages"' EXIT && \
	$(TARGET)/release/examples/manual "$$pages" && \
	for file in $$(cd "$$pages" && find share -type f | sort); do \
		echo "install -D -m 644 $$file"; \
		install -D -m 644 "$$pages/$$file" "$(INSTALLED)/$$file" || exit 1; \
	done

uninstall: ## Remove what install has put there (PREFIX, DESTDIR)
	rm -f "$(INSTALLED)/bin/spliced"
	rm -f $(foreach page,spliced spliced-relay spliced-run spliced-check spliced-reload spliced-status spliced-echo spliced-doctor,"$(INSTALLED)/share/man/man1/$(page).1")
	rm -f "$(INSTALLED)/share/bash-completion/completions/spliced"
	rm -f "$(INSTALLED)/share/zsh/site-functions/_spliced"
	rm -f "$(INSTALLED)/share/fish/vendor_completions.d/spliced.fish"

test: ## Run every test; as root none is left out
	@scripts/install build
	@OPTIONAL_WITHOUT_ROOT=1 scripts/install test
	@[ "$$(id -u)" -eq 0 ] || echo "not root: tests that need it are left out, each says so"
	@CARGO=$(CARGO) RUST_TEST_THREADS=$(TEST_THREADS) scripts/test --workspace

soak: test-kernels ## Look for what is rare, for SOAK_MINUTES (root)
	@[ "$$(id -u)" -eq 0 ] || { echo "make soak: it makes network namespaces; run it as root" >&2; exit 1; }
	@scripts/install build test
	@CARGO=$(CARGO) RUST_TEST_THREADS=$(TEST_THREADS) scripts/soak $(SOAK_MINUTES)

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
