# Two commands do everything: `make demo` (install and watch a training go wrong) and `make test` (install and test).
SHELL := /bin/bash
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
# A machine whose Python already has the right torch (a ROCm image) keeps it: make demo VENV_FLAGS=--system-site-packages
VENV_FLAGS ?=
# Test files that run at the same time: make test WORKERS=8
WORKERS ?= 2
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# An index that is slow or away for a moment costs a moment, not the whole run.
export PIP_RETRIES ?= 10
export PIP_DEFAULT_TIMEOUT ?= 60
# Node brings certificate authorities of its own; the system's may know a proxy between here and the registry.
export NODE_EXTRA_CA_CERTS ?= $(wildcard /etc/ssl/certs/ca-certificates.crt)

.PHONY: setup demo test test-long check bench screenshots clean

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV_FLAGS) $(VENV) || { \
		echo 'make: this Python cannot make virtual environments; on Debian: apt-get install python3-venv' >&2; exit 2; }

# torch comes first and by itself, so that nothing installed later may choose another build.
$(VENV)/.torch: $(BIN)/python
	@$(BIN)/python -c 'import torch' 2>/dev/null || { \
		echo "installing $(TORCH) into $(VENV): minutes and gigabytes, once"; \
		$(BIN)/python -m pip install --quiet '$(TORCH)'; }
	@touch $@

$(VENV)/.run: pyproject.toml $(VENV)/.torch
	@echo 'installing floatscope into $(VENV)'
	@$(BIN)/python -m pip install --quiet -e '.[server,torch]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.run
	@echo 'installing what the tests need into $(VENV)'
	@$(BIN)/python -m pip install --quiet -e '.[server,torch,dev]'
	@touch $@

.tools/.node: web/package.json
	mkdir -p .tools && cp web/package.json .tools/
	npm install --prefix .tools --no-audit --no-fund --no-package-lock --fetch-retries 5
	touch $@

setup: $(VENV)/.dev ## what the tests need
	.ci/system-packages

demo: $(VENV)/.run ## a real training that really goes wrong, watched; DEMO='--seconds 60 --no-browser' for example
	$(BIN)/floatscope demo $(DEMO)

test: setup ## every test that takes less than a minute
	$(BIN)/python -m pytest -m 'not long' --numprocesses $(WORKERS) --dist loadfile $(TESTS)

test-long: setup ## the others
	$(BIN)/python -m pytest -m long --timeout 3600 $(TESTS)

check: setup .tools/.node ## lint, types and repetition; a warning is an error
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	.tools/node_modules/.bin/tsc --project web/tsconfig.json
	$(BIN)/hadolint Dockerfile Dockerfile.rocm
	.tools/node_modules/.bin/jscpd --config .jscpd.json

bench: $(VENV)/.dev ## the measurements behind every figure in the documents
	$(BIN)/python -m tests.bench

screenshots: $(VENV)/.dev ## the pictures of the pages in docs/images
	$(BIN)/python -m tests.screenshots

clean:
	rm -rf $(VENV) .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis
