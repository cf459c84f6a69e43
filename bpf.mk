# The kernel side. Building the project needs none of this: the compiled objects are in git.

CARGO ?= cargo
CLANG ?= clang-19
LLVM_STRIP ?= llvm-strip-19
# The engines' programs and the bench's own; each has its compiled objects in `prebuilt` beside it.
BPF_DIRS := crates/splice-bpf/bpf crates/splice-bench/bpf
# The Rust twins of the types that the programs share with the library, generated from their BTF.
BPF_TYPES := crates/splice-bpf/src/types.rs
# Where the objects go: in a directory like this one, or somewhere else to be compared.
BPF_OUT ?= .
# -mcpu=v3: atomic operations that return the old value (Linux 5.12).
BPF_CFLAGS := -O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror \
	-Icrates/splice-bpf/bpf -I/usr/include/$(shell uname -m)-linux-gnu -fdebug-prefix-map=$(CURDIR)=.

.PHONY: bpf bpf-verify

bpf: ## Compile the BPF programs and generate their Rust types again (needs clang-19, llvm-19, libbpf-dev)
	@scripts/install build lint bpf
	@for directory in $(BPF_DIRS); do \
		out=$(BPF_OUT)/$$directory/prebuilt; mkdir -p $$out; \
		for source in $$directory/*.bpf.c; do \
			object=$$out/$$(basename $$source .c).o; \
			$(CLANG) $(BPF_CFLAGS) -c $$source -o $$object && $(LLVM_STRIP) -g $$object || exit 1; \
		done; \
	done
	@mkdir -p $(BPF_OUT)/$(dir $(BPF_TYPES))
	@$(CARGO) run --quiet --package generate-bpf-types -- $(BPF_OUT)/crates/splice-bpf/bpf/prebuilt/types.bpf.o \
		> $(BPF_OUT)/$(BPF_TYPES).new && mv $(BPF_OUT)/$(BPF_TYPES).new $(BPF_OUT)/$(BPF_TYPES)
	@rustfmt --edition 2024 $(BPF_OUT)/$(BPF_TYPES)

bpf-verify: ## Prove that the compiled BPF programs and the generated types in git are those of the sources
	@out=$$(mktemp -d); status=0; $(MAKE) -s -f bpf.mk bpf BPF_OUT=$$out || status=1; \
	for directory in $(BPF_DIRS); do \
		diff -rq $$out/$$directory/prebuilt $$directory/prebuilt || status=1; \
	done; \
	diff -q $$out/$(BPF_TYPES) $(BPF_TYPES) || status=1; \
	rm -rf $$out; exit $$status
