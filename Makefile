# Two commands do all the set-up: `make serve` starts the service, `make test` passes the tests.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
# cpu or gpu: chosen by the presence of an NVIDIA driver
FLAVOUR ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
# Where torch's CPU build comes from when pip does not find it by itself; used for torch alone
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH = torch==2.13.0+cpu

CONF ?= conf/$(if $(filter gpu,$(FLAVOUR)),local-gpu,local).yaml
PORT ?=
MODEL ?=

BIN = $(VENV)/bin
LOCK = conf/requirements/$(FLAVOUR).lock
STAMP = $(VENV)/.installed-$(FLAVOUR)

.DEFAULT_GOAL := help
.PHONY: help setup compile serve test test-fast drills soak fuzz browser lint bench-overhead bench-handoff bench-goodput bench-goodput-real bench-request bench-constraints bench-edge bench-placement bench-context bench-chat-state demo-model lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) compile ## create the environment from the lock

# Without it everything works, only slower: a failure stops nothing
compile: $(STAMP) ## make machine code of what decides, which the Scheduler then runs: once for its version, a minute
	-@$(BIN)/baton compile

serve: $(STAMP) compile ## start the service: PORT=8000 MODEL=<folder or hub name> CONF=conf/local.yaml
	@exec $(BIN)/baton serve $(CONF) $(if $(PORT),--port $(PORT)) $(if $(MODEL),--model $(MODEL))

test: $(STAMP) compile lint network-tools ## all tests, on real engines, but for the long ones below
	$(BIN)/python -m pytest

test-fast: $(STAMP) ## unit and component tests: seconds
	$(BIN)/python -m pytest tests/unit tests/component tests/edge --ignore tests/edge/live tests/test_architecture.py

drills: $(STAMP) compile network-tools ## every fault at every moment of a request's life: a quarter of an hour; writes docs/drills.md
	$(BIN)/python -m pytest tests/drills -m "not soak" -o log_cli=true -o log_cli_level=INFO --drills-report docs/drills.md

soak: $(STAMP) compile ## 2,000 requests, some aborted, and a worker killed each minute
	$(BIN)/python -m pytest tests/drills -m soak -o log_cli=true -o log_cli_level=INFO

fuzz: $(STAMP) ## bytes of strangers at every socket and route, for minutes: BATON_FUZZ_MINUTES per test
	$(BIN)/python -m pytest tests/edge -m fuzz -o log_cli=true -o log_cli_level=INFO

browser: $(STAMP) ## pages of other sites in a real browser, beside a Baton on loopback: seconds
	@command -v chromium >/dev/null || { echo "Installing the Debian package chromium"; \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium || { echo "chromium is needed"; exit 1; }; }
	$(BIN)/python -m pytest tests/edge/browser -m browser

# The drills cut the network with iptables, and make nodes of network namespaces with ip
.PHONY: network-tools
network-tools:
	@PATH="$$PATH:/usr/sbin:/sbin"; command -v iptables >/dev/null && command -v ip >/dev/null || { \
	  echo "Installing the Debian packages iptables and iproute2, with which the drills change the network"; \
	  apt-get update -qq && apt-get install -qq -y iptables iproute2 || { echo "iptables and ip are needed"; exit 1; }; }

lint: $(STAMP) ## format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-overhead: $(STAMP) compile ## CPU and latency of the whole front against peers
	$(BIN)/python -m bench.overhead

bench-handoff: $(STAMP) ## parts of a handoff, and how soon an abandoned one is freed, on a running service: URL=
	$(BIN)/python -m bench.handoff $(if $(URL),--url $(URL))

bench-goodput: $(STAMP) compile ## the scheduler against other policies on a simulated cluster: hours, or minutes with ARGS=--quick
	$(BIN)/python -m bench.goodput $(ARGS)

bench-goodput-real: $(STAMP) compile ## the same question on real engines here, against vLLM and vllm-router: 20 minutes, or ARGS=--quick
	$(BIN)/python -m bench.goodput_real $(ARGS)

bench-edge: $(STAMP) compile ## what the checks of requests cost, against another commit: BASE=<commit>, three minutes
	$(BIN)/python -m bench.edge_cost $(if $(BASE),--base $(BASE))

bench-constraints: $(STAMP) ## what schemas of answers cost the ingress and an engine: half a minute
	$(BIN)/python -m bench.constraint_cost

bench-request: $(STAMP) compile ## what a request costs before an engine sees it: half a minute
	$(BIN)/python -m bench.request_cost

bench-placement: $(STAMP) compile ## how many placements a second one core of the Scheduler makes: a minute
	$(BIN)/python -m bench.placement

bench-context: $(STAMP) ## how much of a long conversation's prompts is found in the KV cache, against dropping the oldest: seconds
	$(BIN)/python -m bench.context $(ARGS)

bench-chat-state: $(STAMP) compile ## what it costs on real engines that turns are remembered: minutes; URL= measures a running service
	$(BIN)/python -m bench.chat_state $(if $(URL),--url $(URL)) $(ARGS)

demo-model: $(STAMP) ## train conf/models/baton-demo anew
	$(BIN)/python conf/models/recipe/make.py --out conf/models/baton-demo

lock: $(STAMP) ## resolve the locks anew from pyproject.toml
	$(BIN)/python conf/requirements/lock.py cpu
	$(BIN)/python conf/requirements/lock.py gpu

clean: ## remove the environment and the logs; conversations stay in .baton/data
	rm -rf $(VENV) .baton/logs .baton/bench .baton/compiled

# On cpu `pip check` complains about torchvision, torchaudio, torchcodec and triton: conf/requirements/lock.py says why they are out.
$(STAMP): $(LOCK) pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info[:2] != (3, 11))" || { echo "Python 3.11 is needed (PYTHON=/path/to/python3.11)"; exit 1; }
	@echo "Installing the $(FLAVOUR) environment into $(VENV) (once; a few minutes)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
ifeq ($(FLAVOUR),cpu)
	@$(PYTHON) -c "import ctypes; ctypes.CDLL('libnuma.so.1')" 2>/dev/null || { \
	  echo "Installing the Debian package libnuma1, which vLLM's CPU kernels link"; \
	  apt-get update -qq && apt-get install -qq -y libnuma1 || { echo "libnuma.so.1 is needed"; exit 1; }; }
	@$(BIN)/python -m pip install --quiet $(TORCH) 2>/dev/null || $(BIN)/python -m pip install $(TORCH) --index-url $(TORCH_INDEX)
endif
	@$(BIN)/python -m pip install --quiet --no-deps -r $(LOCK)
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.installed-* && touch $@
