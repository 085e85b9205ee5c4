# Two commands need no other set-up: `make serve` starts the service, `make test` runs the tests.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
CLOUDS = .venv-clouds
BROWSER = .venv-browser
# cpu or gpu. The default depends on whether an NVIDIA driver is installed
FLAVOUR ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
# Index for torch's CPU build if pip's own index does not have it. Used for torch only
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH = torch==2.13.0+cpu

CONF ?= conf/$(if $(filter gpu,$(FLAVOUR)),local-gpu,local).yaml
PORT ?=
MODEL ?=

BIN = $(VENV)/bin
LOCK = conf/requirements/$(FLAVOUR).lock
STAMP = $(VENV)/.installed-$(FLAVOUR)
# pip uses one core. So several of them install the lock, and compileall compiles to bytecode what they have installed
INSTALL = $(BIN)/python -m pip install --no-compile

.DEFAULT_GOAL := help
.PHONY: help setup compile serve test test-fast drills drills-nodes drills-services soak fuzz models browser clients clients-installed agents clouds lint bench-overhead bench-handoff bench-goodput bench-goodput-real bench-request bench-agents bench-retention bench-retention-engine bench-constraints bench-edge bench-metrics bench-placement bench-replay bench-scaling bench-scheduler bench-simulator bench-cells bench-context bench-tracing bench-page bench-limits bench-tenants bench-ledger bench-load bench-safety bench-websockets bench-chat-state demo-model script-model lock clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) compile ## create the environment from the lock file

# Optional: without compiled modules everything works, only slower, so a failure does not stop make
compile: $(STAMP) ## compile the modules of placement and screening to machine code: once per version of the sources, takes a minute
	-@$(BIN)/baton compile

serve: $(STAMP) compile ## start the service: PORT=8000 ADMIN_PORT=8001 MODEL=<folder or hub name> CONF=conf/local.yaml
	@exec $(BIN)/baton serve $(CONF) $(if $(PORT),--port $(PORT)) $(if $(ADMIN_PORT),--admin-port $(ADMIN_PORT)) $(if $(MODEL),--model $(MODEL))

# Parts run side by side, and keep two cores busy. Those without a clock take the time that the others leave. Those that start whole
# services come last
HOUSE = tests/architecture tests/test_docs.py tests/test_timeouts.py
SIM = tests/sim
UNIT = tests/unit tests/sim/test_golden_decisions.py
COMPONENT = tests/component
API = tests/component/api
STATE = tests/component/api/state
CLUSTER = tests/component/cluster
ENGINES = tests/engines
SCRIPT = tests/engines/models
LIVE = tests/nodes tests/real_cluster
BESIDE = @$(MAKE) --no-print-directory --keep-going
# Each part has a folder for its temporary files: pytest closes a common one to the user that PostgreSQL runs as
TEMPORARY = /tmp/$@-$(shell id -u)
APART = mkdir -p $(TEMPORARY) && PYTEST_DEBUG_TEMPROOT=$(TEMPORARY)
AT_IDLE = $(BIN)/python -m tests.at_idle $(BIN)/python -m pytest
# Cut so that each takes about as long as the others
WITH_CLOCK = test-api test-services test-engines test-others test-unit-loops
.PHONY: $(WITH_CLOCK) test-house test-live test-sim test-unit

test: $(STAMP) ## all tests, with real engines, except for soak, fuzz, models, browser, clients, clouds and drills
	$(BESIDE) --jobs=4 IN_ORDER=1 compile lint quick-clients test-house network-tools monitoring-tools
	$(BESIDE) --jobs=7 IN_ORDER=1 $(WITH_CLOCK) test-live test-sim test-unit

# A part that is made alone waits for no other
ifdef IN_ORDER
test-live: | $(WITH_CLOCK)
endif

test-house: $(STAMP)
	$(APART) $(BIN)/python -m pytest $(HOUSE)

# Simulated runs test what users run, compiled; the golden decisions are compared with those of the sources, too
test-sim: $(STAMP)
	$(APART) BATON_PURE_PYTHON=0 $(AT_IDLE) $(SIM) --timeout 1500 --durations=10

test-unit: $(STAMP)
	$(APART) $(AT_IDLE) $(UNIT) -m "not asyncio" --timeout 1500 --durations=10

# What runs in an event loop has timeouts, which a process that gets the time of idle cores may miss
test-unit-loops: $(STAMP)
	$(APART) $(BIN)/python -m pytest tests/unit -m asyncio --durations=10

test-api: $(STAMP)
	$(APART) $(BIN)/python -m pytest $(API) --ignore $(STATE) --durations=20

test-services: $(STAMP)
	$(APART) $(BIN)/python -m pytest $(STATE) $(CLUSTER) $(SCRIPT) --durations=20

test-engines: $(STAMP)
	$(APART) $(BIN)/python -m pytest $(ENGINES) --ignore $(SCRIPT) --durations=20

test-others: $(STAMP)
	$(APART) $(BIN)/python -m pytest tests $(addprefix --ignore ,$(HOUSE) $(SIM) $(UNIT) $(API) $(CLUSTER) $(ENGINES) $(LIVE)) --durations=20

test-live: $(STAMP)
	$(APART) $(BIN)/python -m pytest $(LIVE) --durations=40

test-fast: $(STAMP) monitoring-tools ## unit, component and hostile tests, without engines: minutes
	$(BIN)/python -m pytest tests/unit $(COMPONENT) tests/hostile $(HOUSE)

drills: $(STAMP) compile network-tools ## inject every fault at every moment of a request: half an hour; compares with docs/drills.md, and writes it
	$(BIN)/python -m pytest tests/drills -m "not soak" -o log_cli=true -o log_cli_level=INFO --drills-report docs/drills.md

drills-nodes: $(STAMP) compile network-tools ## take nodes and the network between them away, on a cluster of this machine: twenty minutes; needs root
	$(BIN)/python -m pytest tests/nodes -m full_matrix -o log_cli=true -o log_cli_level=INFO --drills-report docs/drills.md

drills-services: $(STAMP) compile ## a pool that grows and shrinks, two cells, answers that pause, deaths of Ray's own processes, and the ledger in chaos, on real engines: a quarter of an hour
	$(BIN)/python -m pytest tests/real_cluster -m full_matrix -o log_cli=true -o log_cli_level=INFO

soak: $(STAMP) compile ## run 2,000 requests, abort some of them, and kill a worker each minute
	$(BIN)/python -m pytest tests/drills -m soak -o log_cli=true -o log_cli_level=INFO

fuzz: $(STAMP) ## send random bytes to every socket and route: BATON_FUZZ_MINUTES minutes per test
	$(BIN)/python -m pytest tests/hostile tests/real_cluster/hostile -m fuzz -o log_cli=true -o log_cli_level=INFO

models: $(STAMP) ## hand over the KV blocks of a small model of each kind (docs/models.md): two minutes for each
	$(BIN)/python -m pytest tests/engines/test_models.py -m models

# Playwright is beside the environment, not in it, and sees it
browser: $(STAMP) $(BROWSER)/.installed ## test the page of the admin port in a real browser, and what pages of other sites can do: a minute
	@command -v chromium >/dev/null || { echo "Installing the Debian package chromium"; \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core || { echo "chromium is needed"; exit 1; }; }
	$(BROWSER)/bin/python -m pytest tests/browser tests/hostile/browser -m browser

$(BROWSER)/.installed: conf/requirements/browser.txt | $(STAMP)
	@echo "Installing what drives the browser into $(BROWSER)"
	@$(PYTHON) -m venv --clear $(BROWSER)
	@$(BROWSER)/bin/python -m pip install --quiet -r conf/requirements/browser.txt
	@echo "import site; site.addsitedir('$(abspath $(VENV))/lib/python3.11/site-packages')" >$(BROWSER)/lib/python3.11/site-packages/zz-baton.pth
	@touch $@

# Each client has an environment of its own in .baton/clients, with the versions that tests/clients/*/ pins (docs/clients.md)
.PHONY: quick-clients
ALL_CLIENTS = $(BIN)/python -m tests.clients $(if $(ONLY),--only $(ONLY))
clients: $(STAMP) compile ## try clients of others against a service: ONLY=<names> URL=<a running one, with a key in BATON_API_KEY>
	$(ALL_CLIENTS) $(if $(URL),--url $(URL))

clients-installed: $(STAMP) ## install the clients of others, in .baton/clients: minutes; ONLY=<names>
	$(ALL_CLIENTS) --install

quick-clients: $(STAMP)
	@$(BIN)/python -m tests.clients --install --only quick

# Each agent has an environment of its own in .baton/clients/agents, made once: 400 MB each, and Open WebUI 3 GB
agents: $(STAMP) ## coding agents edit a file on a running service with the model baton-script (docs/agents.md): ONLY=codex URL= KEY_FILE=
	$(BIN)/python -m tests.clients.coding_agents $(if $(ONLY),--only $(ONLY)) $(if $(URL),--url $(URL)) $(if $(KEY_FILE),--key-file $(KEY_FILE)) $(ARGS)

# Packages of the clouds are beside the environment, not in it, and see it
clouds: $(STAMP) $(CLOUDS)/.installed ## check the cluster files against stand-ins of the clouds: two minutes; CRD=<KubeRay's CRD of a RayService>
	$(if $(CRD),BATON_KUBERAY_CRD=$(CRD) )$(CLOUDS)/bin/python -m pytest tests/cluster_files -m clouds

$(CLOUDS)/.installed: $(wildcard conf/requirements/*.txt) | $(STAMP)
	@echo "Installing what stands in for the clouds into $(CLOUDS)"
	@$(PYTHON) -m venv --clear $(CLOUDS)
	@$(CLOUDS)/bin/python -m pip install --quiet -r conf/requirements/clouds.txt
	@echo "import site; site.addsitedir('$(abspath $(VENV))/lib/python3.11/site-packages')" >$(CLOUDS)/lib/python3.11/site-packages/zz-baton.pth
	@touch $@

# The drills cut the network with iptables, and make network namespaces that act as nodes with ip (as tests/nodes does)
.PHONY: network-tools
network-tools:
	@PATH="$$PATH:/usr/sbin:/sbin"; command -v iptables >/dev/null && command -v ip >/dev/null || { \
	  echo "Installing the Debian packages iptables and iproute2, with which the drills change the network"; \
	  apt-get update -qq && apt-get install -qq -y iptables iproute2 || { echo "iptables and ip are needed"; exit 1; }; }

# Unpacked, not installed: an installed Prometheus would run as a service. Debian's Alertmanager reads its templates from one place
MONITORING = .baton/monitoring
TEMPLATES = /usr/share/prometheus/alertmanager
.PHONY: monitoring-tools
monitoring-tools: $(MONITORING)/.unpacked ## unpack Debian's Prometheus and Alertmanager into .baton/monitoring: seconds

# apt serves one process at a time
ifdef IN_ORDER
$(MONITORING)/.unpacked: | network-tools
endif

$(MONITORING)/.unpacked:
	@echo "Unpacking the Debian packages prometheus and prometheus-alertmanager into $(MONITORING)"
	@rm -rf $(MONITORING) && mkdir -p $(MONITORING)
	@cd $(MONITORING) && { apt-get update -qq; apt-get download -qq -o APT::Sandbox::User=root prometheus prometheus-alertmanager; } \
	  && for package in *.deb; do dpkg-deb -x $$package . || exit 1; done && rm *.deb || { echo "prometheus and prometheus-alertmanager are needed"; exit 1; }
	@test -e $(TEMPLATES)/default.tmpl || { mkdir -p $(TEMPLATES) && cp $(MONITORING)$(TEMPLATES)/*.tmpl $(TEMPLATES); } \
	  || { echo "As root: mkdir -p $(TEMPLATES) && cp $(CURDIR)/$(MONITORING)$(TEMPLATES)/*.tmpl $(TEMPLATES)"; exit 1; }
	@touch $@

lint: $(STAMP) ## check format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-overhead: $(STAMP) compile ## measure CPU time and latency of the ingress path against other systems
	$(BIN)/python -m bench.overhead

bench-handoff: $(STAMP) ## measure the parts of a handoff, and when an abandoned one is freed, on a running service: URL= ADMIN_URL=
	$(BIN)/python -m bench.handoff $(if $(URL),--url $(URL)) $(if $(ADMIN_URL),--admin-url $(ADMIN_URL))

bench-goodput: $(STAMP) compile ## compare placement policies on a simulated cluster: hours, or minutes with ARGS=--quick
	$(BIN)/python -m bench.goodput $(ARGS)

bench-goodput-real: $(STAMP) compile ## compare goodput on real engines with vLLM and vllm-router: an hour, less with ARGS=--quick
	$(BIN)/python -m bench.goodput_real $(ARGS)

bench-edge: $(STAMP) compile ## measure the cost of the checks of requests, against another commit: BASE=<commit>, 3 minutes
	$(BIN)/python -m bench.edge_cost $(if $(BASE),--base $(BASE))

bench-constraints: $(STAMP) ## measure the cost of structured output in the ingress and an engine: half a minute
	$(BIN)/python -m bench.constraint_cost

bench-safety: $(STAMP) compile ## measure the cost of screening requests and answers: four minutes
	$(BIN)/python -m bench.safety.cost

bench-request: $(STAMP) compile ## measure the cost of a request before it reaches an engine: half a minute
	$(BIN)/python -m bench.request_cost

bench-retention: $(STAMP) compile ## simulate agents beside chats with and without retention of KV blocks: minutes; ARGS="--kv 130000"
	$(BIN)/python -m bench.retention.simulated $(ARGS)

bench-retention-engine: $(STAMP) ## the same on two real engines in turns, on a machine without other work: eight minutes
	$(BIN)/python -m bench.retention.real_engine $(ARGS)

bench-agents: $(STAMP) compile ## agents beside chats on real engines: Baton, and vLLM behind two routers: half an hour
	$(BIN)/python -m bench.retention.real_agents $(ARGS)

bench-metrics: $(STAMP) ## measure the cost of metrics per token, request and page: half a minute
	$(BIN)/python -m bench.metrics_cost

bench-placement: $(STAMP) compile ## measure placements per second on one core of the Scheduler: a minute
	$(BIN)/python -m bench.placement

bench-replay: $(STAMP) compile ## measure what the Scheduler's stimulus log costs: a minute
	$(BIN)/python -m bench.replay_cost

bench-scaling: $(STAMP) compile ## compare autoscalers on recorded traces in the simulator: TRACES=<folder>, 8 minutes
	$(BIN)/python -m bench.scaling --traces $(TRACES) $(ARGS)

bench-scheduler: $(STAMP) compile ## measure the Scheduler with a thousand workers, through sockets: two minutes
	$(BIN)/python -m bench.scheduler.load $(ARGS)

bench-simulator: $(STAMP) compile ## compare the simulator with a running service on paced engines: ten minutes
	$(BIN)/python -m bench.live.simulated $(ARGS)

bench-cells: $(STAMP) compile ## simulate one Scheduler against 4 and 16 with the same workers together: minutes
	$(BIN)/python -m bench.cells.compare $(ARGS)

bench-context: $(STAMP) ## measure prefix hits of long conversations, against dropping the oldest turns: seconds
	$(BIN)/python -m bench.context $(ARGS)

bench-tracing: $(STAMP) ## measure the cost of timelines, kept receipts and exported traces: a minute
	$(BIN)/python -m bench.tracing_cost

bench-page: $(STAMP) ## measure what the page on the admin port costs while somebody looks at it: half a minute
	$(BIN)/python -m bench.page_cost

bench-websockets: $(STAMP) compile ## measure idle WebSockets, and WebSocket against SSE: a minute
	$(BIN)/python -m bench.websockets $(ARGS)

bench-limits: $(STAMP) ## measure the cost of limits on a Redis of this machine: seconds
	$(BIN)/python -m bench.limits_cost $(ARGS)

bench-chat-state: $(STAMP) compile ## measure the cost of stored conversations on real engines: minutes; URL= measures a running service
	$(BIN)/python -m bench.chat_state $(if $(URL),--url $(URL)) $(ARGS)

bench-tenants: $(STAMP) ## measure what API keys, limits and the ledger add to a request: some minutes
	$(BIN)/python -m bench.tenants_cost $(ARGS)

bench-load: $(STAMP) ## measure what the load generator takes per token and per request: a minute
	$(BIN)/python -m bench.load_limit $(ARGS)

bench-ledger: $(STAMP) ## measure how many rows of usage per second the ledger takes: a minute
	$(BIN)/python -m bench.ledger_rows

SCRIPT_MODEL = .baton/models/baton-script
script-model: $(SCRIPT_MODEL)/config.json ## make the model that follows scripts, for agents: some seconds
$(SCRIPT_MODEL)/config.json: $(STAMP) $(wildcard conf/models/script_recipe/*.py) conf/models/baton-demo/tokenizer.json
	@$(BIN)/python conf/models/script_recipe/make.py --out $(SCRIPT_MODEL)

demo-model: $(STAMP) ## train conf/models/baton-demo again
	$(BIN)/python conf/models/recipe/make.py --out conf/models/baton-demo

lock: $(STAMP) ## resolve the lock files again from pyproject.toml
	$(BIN)/python conf/requirements/lock.py cpu
	$(BIN)/python conf/requirements/lock.py gpu

clean: ## remove the environment, logs, benchmark results and compiled modules; conversations stay in .baton/data
	rm -rf $(VENV) $(CLOUDS) $(BROWSER) $(MONITORING) .baton/clients .baton/logs .baton/bench .baton/compiled

# On cpu, `pip check` reports that torchvision, torchaudio, torchcodec and triton are missing (see conf/requirements/lock.py).
$(STAMP): $(LOCK) pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info[:2] != (3, 11))" || { echo "Python 3.11 is needed (PYTHON=/path/to/python3.11)"; exit 1; }
	@echo "Installing the $(FLAVOUR) environment into $(VENV) (once; a few minutes)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
ifeq ($(FLAVOUR),cpu)
	@$(PYTHON) -c "import ctypes; ctypes.CDLL('libnuma.so.1')" 2>/dev/null || { \
	  echo "Installing the Debian package libnuma1, which vLLM's CPU kernels link"; \
	  apt-get update -qq && apt-get install -qq -y libnuma1 || { echo "libnuma.so.1 is needed"; exit 1; }; }
	@$(INSTALL) --quiet $(TORCH) 2>/dev/null || $(INSTALL) $(TORCH) --index-url $(TORCH_INDEX)
endif
	@xargs -a $(LOCK) -n 26 -P "$$(nproc)" $(INSTALL) --quiet --no-deps
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib/python3.11/site-packages || true  # some packages have files of other Pythons
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.installed-* && touch $@
