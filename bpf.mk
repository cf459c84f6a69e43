# The kernel side. Building the project needs none of this: the compiled objects are in git.

CLANG ?= clang-19
LLVM_STRIP ?= llvm-strip-19
BPF_DIR := crates/splice/bpf
BPF_OUT ?= $(BPF_DIR)/prebuilt
BPF_SOURCES := $(wildcard $(BPF_DIR)/*.bpf.c)
# -mcpu=v3: atomic operations that return the old value (Linux 5.12).
BPF_CFLAGS := -O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror \
	-I/usr/include/$(shell uname -m)-linux-gnu -fdebug-prefix-map=$(CURDIR)=.

.PHONY: bpf bpf-verify

bpf: ## Compile the BPF programs again (needs clang-19, llvm-19, libbpf-dev)
	@mkdir -p $(BPF_OUT)
	@for source in $(BPF_SOURCES); do \
		object=$(BPF_OUT)/$$(basename $$source .c).o; \
		$(CLANG) $(BPF_CFLAGS) -c $$source -o $$object && $(LLVM_STRIP) -g $$object || exit 1; \
	done

bpf-verify: ## Prove that the compiled BPF programs in git are those of the sources
	@out=$$(mktemp -d) && $(MAKE) -s -f bpf.mk bpf BPF_OUT=$$out && \
		diff -rq $$out $(BPF_DIR)/prebuilt; status=$$?; rm -rf $$out; exit $$status
