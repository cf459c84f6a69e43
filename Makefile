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
VERSION := $(shell sed -n '/^\[workspace.package\]/,/^$$/s/^version = "\(.*\)"/\1/p' Cargo.toml)

# A page for each function of so_splice(3) and splice_join(3) that leads to it.
SO_SPLICE_LINKS := so_splice_as so_splice_bytes so_splice_error so_splice_fd so_unsplice
SPLICE_JOIN_LINKS := splice_abi_version splice_counters splice_detach splice_engine splice_fd splice_release \
	splice_strerror splice_undo splice_wait

.PHONY: help build install install-program install-libraries uninstall test test-kernels test-aarch64 soak demo \
	compare bench-check check fmt

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

build: ## Build spliced and the bench, optimised
	@scripts/install build
	$(CARGO) build --release --package spliced --package splice-bench

# Without MAKEFLAGS, which would hand PREFIX and DESTDIR to the make that builds libbpf.
install: install-program install-libraries ## Install spliced, libsplice and libso_splice (PREFIX, DESTDIR)

install-program: ## Install spliced, its manual pages and completions only
	@scripts/install build
	env -u MAKEFLAGS $(CARGO) build --release --package spliced --bin spliced --example manual
	install -D -m 755 $(TARGET)/release/spliced "$(INSTALLED)/bin/spliced"
	@pages=$$(mktemp -d) && trap 'rm -r "$$pages"' EXIT && \
	$(TARGET)/release/examples/manual "$$pages" && \
	for file in $$(cd "$$pages" && find share -type f | sort); do \
		echo "install -D -m 644 $$file"; \
		install -D -m 644 "$$pages/$$file" "$(INSTALLED)/$$file" || exit 1; \
	done

install-libraries: ## Install libsplice and libso_splice for C and LD_PRELOAD only
	@scripts/install build
	env -u MAKEFLAGS $(CARGO) build --release --package splice-c --package so-splice-preload
	install -D -m 755 $(TARGET)/release/libsplice.so "$(INSTALLED)/lib/libsplice.so.1"
	ln -sf libsplice.so.1 "$(INSTALLED)/lib/libsplice.so"
	install -D -m 644 $(TARGET)/release/libsplice.a "$(INSTALLED)/lib/libsplice.a"
	install -D -m 755 $(TARGET)/release/libso_splice.so "$(INSTALLED)/lib/libso_splice.so"
	install -D -m 644 crates/splice-c/include/splice.h "$(INSTALLED)/include/splice.h"
	install -D -m 644 crates/splice-c/libsplice.pc.in "$(INSTALLED)/lib/pkgconfig/libsplice.pc"
	sed -i 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' "$(INSTALLED)/lib/pkgconfig/libsplice.pc"
	@for page in man/*.[37]; do \
		echo "install -D -m 644 $$page"; \
		install -D -m 644 "$$page" "$(INSTALLED)/share/man/man$${page##*.}/$${page##*/}" || exit 1; \
	done
	@for link in $(SO_SPLICE_LINKS:%=%:so_splice) $(SPLICE_JOIN_LINKS:%=%:splice_join); do \
		file="$(INSTALLED)/share/man/man3/$${link%:*}.3"; \
		echo ".so man3/$${link#*:}.3" > "$$file" && chmod 644 "$$file" || exit 1; \
	done
# The dynamic linker finds a library in /usr/local/lib only in its cache.
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" -ne 0 ] || ldconfig

uninstall: ## Remove what install has put there (PREFIX, DESTDIR)
	rm -f "$(INSTALLED)/bin/spliced"
	rm -f $(foreach page,spliced spliced-relay spliced-run spliced-check spliced-reload spliced-status spliced-sessions spliced-kill spliced-backends spliced-drain spliced-undrain spliced-weigh spliced-top spliced-echo spliced-mesh spliced-adopt spliced-bypass spliced-doctor spliced-matrix spliced-trace,"$(INSTALLED)/share/man/man1/$(page).1")
	rm -f "$(INSTALLED)/share/bash-completion/completions/spliced"
	rm -f "$(INSTALLED)/share/zsh/site-functions/_spliced"
	rm -f "$(INSTALLED)/share/fish/vendor_completions.d/spliced.fish"
	rm -f $(foreach library,libsplice.so libsplice.so.1 libsplice.a libso_splice.so,"$(INSTALLED)/lib/$(library)")
	rm -f "$(INSTALLED)/lib/pkgconfig/libsplice.pc" "$(INSTALLED)/include/splice.h"
	rm -f $(foreach page,so_splice splice_join $(SO_SPLICE_LINKS) $(SPLICE_JOIN_LINKS),"$(INSTALLED)/share/man/man3/$(page).3")
	rm -f "$(INSTALLED)/share/man/man7/libso_splice.7"

test: ## Run every test; as root none is left out
	@scripts/install build
	@OPTIONAL_WITHOUT_ROOT=1 scripts/install test
	@[ "$$(id -u)" -eq 0 ] || echo "not root: tests that need it are left out, each says so"
	@CARGO=$(CARGO) RUST_TEST_THREADS=$(TEST_THREADS) scripts/test --workspace

soak: test-kernels test-aarch64 ## Look for what is rare, for SOAK_MINUTES (root)
	@[ "$$(id -u)" -eq 0 ] || { echo "make soak: it makes network namespaces; run it as root" >&2; exit 1; }
	@scripts/install build test soak
	@CARGO=$(CARGO) RUST_TEST_THREADS=$(TEST_THREADS) scripts/soak $(SOAK_MINUTES)

test-kernels: ## Boot Linux 6.1, 6.12, 6.18 and the newest 7.x in QEMU and run there what depends on the kernel; more than an hour each
	@scripts/test-kernels

test-aarch64: ## Build for aarch64, run there the tests without root, and boot Linux for arm64 in QEMU
	@scripts/test-aarch64

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
