# Everything that is done with this checkout. Needs Rust, a C and C++ compiler and Python 3.11; the rest is set up on the way.
PYTHON := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(HOME)/.cargo/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup tools venv build demo test expected bench gpu-check wheel docs header abi

help: ## what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

setup: tools ## .venv with all Python packages, and a release build of library and program; once
	@$(MAKE) --no-print-directory -j2 venv build
	@scripts/develop.sh

tools:
	@scripts/system_tools.sh

venv:
	@scripts/setup_venv.sh

build:
	@cargo build --release --locked --quiet

demo: setup ## distil a language model and kill a worker on the way; the same as one recipe, with the same batches whoever works; resume a training run on other numbers of ranks
	@$(PYTHON) examples/demo.py

test: setup ## every test; SUITES="c python" runs some of them (scripts/run_tests.py has the list)
	@$(PYTHON) scripts/run_tests.py $(SUITES)

expected: setup ## every test, and their numbers written to tests/expected.txt
	@$(PYTHON) scripts/run_tests.py --bless $(SUITES)

bench: setup ## beside softs, multiprocessing, memcpy, zephon, grain and the bare tokenizer
	@$(PYTHON) benches/run.py

gpu-check: ## what only a GPU can show of the cuda medium, in under 5 minutes; needs a build (or what scripts/gpu_check.py --pack makes) and NumPy
	@$$(command -v $(PYTHON) || command -v python3) scripts/gpu_check.py

wheel: setup ## build/dist/laneway-*.whl
	@$(PYTHON) -m pip wheel -q --no-build-isolation --no-deps -w build/dist -C cmake.define.LANEWAY_TARGET_DIR=$(CURDIR)/target -C build-dir=build/wheel .
	@ls build/dist/*.whl

docs: ## Rust's pages in target/doc; the C API's are include/laneway.h itself
	@RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --release --locked --no-deps --document-private-items --quiet
	@echo target/doc/laneway/index.html

header: ## include/laneway.h from src/capi
	@LANEWAY_BLESS=1 cargo test --release --locked --quiet --test header

abi: header ## accept the header's binary interface as compatible, or as a new version (scripts/abi.sh explains)
	@scripts/abi.sh bless
