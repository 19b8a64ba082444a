# Everything runs in .venv/, which the first target that needs it sets up with nothing but
# Python >= 3.11 and make. `make clean` takes it away again.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
WORKERS ?= 2

# An environment that lost its Python, or came along with a copied or moved checkout, is no good.
SOUND := $(shell $(PY) -P -c 'import adaspec, pathlib; \
  print(pathlib.Path(adaspec.__file__).parent == pathlib.Path("adaspec").resolve())' 2>/dev/null)
ifneq ($(SOUND),True)
$(shell rm -f $(READY))
endif

.PHONY: help demo test test-fast test-engine test-thorough test-long test-faults soak engine lint bench bench-guard evidence gpu-dry-run docs site test-packaging clean

help:
	@echo 'make demo            train a policy on recorded traces, judge it, and serve a small model with it'
	@echo 'make test            run the tests but the thorough ones; those on a real vLLM where it can be installed'
	@echo 'make test-fast       the quick unit tests, some three minutes'
	@echo 'make test-thorough   what make test leaves out: rarely used parts, and tests that take minutes'
	@echo 'make test-engine     the tests on a real vLLM, the thorough ones included'
	@echo 'make test-long       2,000 random requests in random mixes through each model runner of a real vLLM'
	@echo 'make test-faults     the tests of what may go wrong around a server, those that take long included'
	@echo 'make soak            one engine per model runner under mixed load, faults and mode switches: 80 minutes'
	@echo 'make lint            ruff and mypy'
	@echo 'make bench           how long a step's decision takes on this machine'
	@echo 'make bench-guard     policies with and without the guard, where it has to work: one table, some 15 minutes'
	@echo 'make evidence        every committed report and table again, by its own command: most of a day'
	@echo 'make gpu-dry-run     what eval/gpu measures on a GPU, on tiny models and this CPU'
	@echo 'make docs            the tables and the picture, from reports'
	@echo 'make site            a searchable site of README and docs, in site/'
	@echo 'make test-packaging  resolve adaspec beside several versions of vLLM, and read their sources (needs the registries)'
	@echo 'make clean           remove .venv/, demo/ and caches'

PIP := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile
# Where there is no GPU, the PyTorch that vLLM 0.32 for CPU pins. Where it cannot be fetched, any serves to train.
CPU_TORCH := torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu --retries 0

# The stamp comes last, so an environment whose set-up was cut short is set up again from nothing.
$(READY): pyproject.toml
	@set -e; \
	if [ ! -e $(READY) ]; then \
	  python=; \
	  for name in python3.11 python3.12 python3.13 python3 python; do \
	    if $$name -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	      python=$$name; break; \
	    fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo 'adaspec needs Python 3.11 or newer on the PATH, with its venv and ensurepip (Debian: python3-venv); none was found.' >&2; \
	    exit 1; \
	  fi; \
	  echo "Setting up $(VENV)/ with $$($$python --version); the first time takes a minute or two."; \
	  rm -rf $(VENV); \
	  $$python -m venv $(VENV); \
	fi; \
	command -v nvidia-smi >/dev/null || $(PIP) $(CPU_TORCH) || true; \
	$(PIP) -e '.[dev]'; \
	touch $(READY)

# Training uses one core. vLLM is installed, and what it will serve fetched, on the other meanwhile;
# that replaces nothing which training uses: the dev extra pins the numba that vLLM brings, and CPU_TORCH its PyTorch.
DEMO_TRACES := eval/traces/reference-pair
DEMO_COST := training/reference-pair-cpu/cost.json
DEMO_TARGET := demo/SmolLM2-135M-Instruct
DEMO_TRAIN = $(PY) -m adaspec train $(DEMO_TRACES) -o demo/policy --cost $(DEMO_COST) --concurrency 1 --engine sync --orders 1 --resamples 0 --force
DEMO_EVAL = $(PY) -m adaspec eval $(DEMO_TRACES) --policy demo/policy --cost $(DEMO_COST) --concurrency 1 --engine sync --orders 1 --resamples 0 -o demo/report --force
DEMO_SERVE = $(PY) eval/serve_demo.py --target $(DEMO_TARGET) --said "$$(cat $(VENV)/.engine 2>/dev/null)"
STARTED := $(shell date +%s)
demo: $(READY)
	@ls -d $(VENV)/lib/python3*/site-packages/vllm >/dev/null 2>&1 && \
	  ! grep -qs 'cannot be installed' $(VENV)/.engine || rm -f $(VENV)/.engine
	@mkdir -p demo
	@echo '1. Train a policy. Meanwhile vLLM is installed and the model fetched (demo/set-up.log).'
	@echo '$(DEMO_TRAIN)'
	@set -m; { $(MAKE) --no-print-directory engine && $(DEMO_SERVE) --fetch-only; } >demo/set-up.log 2>&1 & preparing=$$!; set +m; \
	  trap "kill -- -$$preparing 2>/dev/null" EXIT; \
	  $(DEMO_TRAIN) && { wait $$preparing || true; }
	@# A server takes a minute or two to start: that is when the policy is judged.
	@echo && echo '2. Judge it on the requests that it never saw.'
	@echo '$(DEMO_EVAL)'
	@$(DEMO_SERVE) --policy demo/policy --cost $(DEMO_COST) \
	  --meanwhile "$(DEMO_EVAL) > demo/judged.txt && sed -n '/^Speedup/,/^$$/p' demo/judged.txt && \
	    echo 'All that it says is in demo/judged.txt and demo/report/report.html.' && echo && echo '3. Serve a model with it.'"
	@echo "It took $$(($$(date +%s) - $(STARTED))) seconds."

# Two processes would compile the same code twice. So the tests that compile most of it come first, in
# one, while vLLM is installed beside them: what is compiled is kept for all others.
COMPILING := tests/unit/train
QUICK := -m 'not thorough'
IN_PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
test: $(READY)
	@set -m; $(MAKE) --no-print-directory engine & installing=$$!; set +m; \
	  trap "kill -- -$$installing 2>/dev/null" EXIT; \
	  $(PY) -m pytest $(COMPILING) $(QUICK) && wait $$installing
	$(PY) -m pytest $(IN_PARALLEL) $(QUICK) --ignore tests/engine --ignore $(COMPILING)
	$(ENGINE_TESTS) $(QUICK)
	$(V2_TESTS) $(QUICK)

test-thorough: $(READY) engine
	$(PY) -m pytest $(IN_PARALLEL) -m thorough --ignore tests/engine
	$(ENGINE_TESTS) -m thorough
	$(V2_TESTS) -m thorough

# Compiled code is kept between runs: the first one after a change to it takes longer.
test-fast: $(READY)
	$(PY) -m pytest tests/unit -n $(WORKERS) --dist loadfile -m 'not slow and not thorough'

# Every process keeps its engine to a core of its own; on a GPU they would be in each other's way.
ENGINES := $(if $(shell command -v nvidia-smi),1,$(WORKERS))
ENGINE_TESTS = $(PY) -m pytest tests/engine -n $(ENGINES) --dist loadfile --no-loadscope-reorder
# Those on model runner V2 change what the process takes for a GPU, so that they have their own.
V2_TESTS = $(PY) -m pytest tests/engine/v2 -n $(ENGINES) --dist loadfile --no-loadscope-reorder
test-engine: $(READY) engine
	$(ENGINE_TESTS)
	$(V2_TESTS)

# REQUESTS and SEED choose another run: make test-long REQUESTS=200 SEED=7. V2 runs in Triton's
# interpreter and takes the longest.
REQUESTS ?= 2000
SEED ?= 0
test-long: $(READY) engine
	$(PY) eval/soak/long_v1.py --requests $(REQUESTS) --seed $(SEED)
	$(PY) eval/soak/long_v2.py --requests $(REQUESTS) --seed $(SEED)

# Each fault has a safe outcome that is counted and logged: the tests name them one by one.
FAULTS := tests/engine/test_faults.py tests/engine/test_either_runner.py tests/unit/vllm/test_trace_output.py
test-faults: $(READY) engine
	$(PY) -m pytest $(FAULTS) -v -m "thorough or not thorough"
	$(PY) -m pytest tests/engine/v2/test_v2_either_runner.py -v -m "thorough or not thorough"

MINUTES ?= 30
soak: $(READY) engine
	$(PY) eval/soak/soak.py v1 --minutes $(MINUTES) -o eval/reports/soak/v1
	$(PY) eval/soak/soak.py v2 --minutes $(MINUTES) -o eval/reports/soak/v2

# With a GPU, vLLM is for its user to install; its tests run on what is there. What was said of it is
# kept: whoever needs vLLM and finds none says why.
engine: $(READY)
	@if [ ! -e $(VENV)/.engine ]; then \
	  set -e; \
	  said='vLLM for this GPU is for you to install: $(PY) -m pip install vllm'; \
	  command -v nvidia-smi >/dev/null || said="$$($(PY) tests/engine/install_vllm.py)"; \
	  echo "$$said"; \
	  echo "$$said" > $(VENV)/.engine; \
	fi

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: $(READY)
	$(PY) eval/decide.py

# Recordings in ../shared are replayed too; where they are not, it says that they are left out.
bench-guard: $(READY)
	$(PY) eval/guard/bench.py -o eval/reports/guard

# The public recordings are read from the folder in SPECDECODE_BENCH.
evidence: $(READY)
	$(PY) eval/evidence.py

gpu-dry-run: $(READY) engine
	OUT=build/gpu-dry-run KIT=build/gpu-kit bash eval/gpu/short_run.sh measure --dry-run

docs: $(READY)
	$(PY) eval/summary.py

# Searchable pages of README and docs, in site/.
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

test-packaging: $(READY)
	$(PY) tests/packaging/beside_vllm.py

clean:
	rm -rf $(VENV) demo site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
