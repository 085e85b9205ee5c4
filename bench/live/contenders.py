"""Who is compared, and how one waits while another is measured.

`baton` and `baton P->D` are the same service: the second one's requests ask for the path by a header. Every engine
runs at the same nice level. A system that is not measured is stopped by signal: its idle work is not the others' load.
"""

import os
import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from bench.fronts import census
from bench.fronts.child import Child, Driver
from bench.fronts.free_ports import free_port
from bench.fronts.setting import Setting
from bench.fronts.systems import LOAD_GENERATOR, Baton, System, VllmRouter, get, served_name, wait
from bench.live.goodput import Slo

OURS, FIXED, ROUTED = "baton", "baton P->D", "vllm-router"
NUM_WORKERS = (2, 4)
"""Engines that each system may have."""
SETTLE_S = 1.0
"""After a stopped system goes on: its processes hear from each other again."""
KEPT_RECEIPTS = 20_000
_HOUR_S = 3600.0
_WORKERS = re.compile(r'^baton_workers\{[^}]*deployment="scheduler"[^}]*\} (\S+)$', re.MULTILINE)


def colocated_name(num_servers: int) -> str:
    return f"{num_servers} x vllm"


@dataclass(frozen=True)
class EngineRules:
    """How an engine of vLLM's chooses what a step computes."""

    step_tokens: int
    """Tokens of a step, at most."""
    by_priority: bool = False
    """Whether what is due first begins first, by vLLM's priorities, instead of what came first."""

    def __str__(self) -> str:
        return f"steps of {self.step_tokens} tokens{', by priority' if self.by_priority else ''}"

    @property
    def engine(self) -> dict[str, Any]:
        """Engine arguments."""
        policy = "priority" if self.by_priority else "fcfs"
        return {"max_num_batched_tokens": self.step_tokens, "scheduling_policy": policy}


class Colocated(System):
    """Several `vllm serve`, each of which computes prompts and generates."""

    name = "vllm"

    def __init__(
        self,
        setting: Setting,
        driver: Driver,
        num_servers: int,
        rules: EngineRules,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`options`: further ones of `vllm serve`."""
        super().__init__(setting, driver)
        self.ports = [free_port() for _ in range(num_servers)]
        self.rules = rules
        self._options = options

    def start(self) -> None:
        servers = [
            self._spawn_vllm(f"API server {number}", port, engine={**self.rules.engine, **self._options})
            for number, port in enumerate(self.ports)
        ]
        for ready in servers:
            ready()


class EqualBaton(Baton):
    """At the nice level of the others, and of Ray's own processes."""

    def _is_ready(self) -> bool:
        """All of its workers are known, not only the first of each pool."""
        pools = (self._setting.args[pool]["replicas"] for pool in ("prefill", "decode"))
        return super()._is_ready() and known_workers(get(self.admin_port, "/metrics") or "") == sum(pools)

    def _spawn(self, part: str, argv: list[str], **environment: str) -> Child:
        return super()._spawn(part, argv, RAY_worker_niceness="0", **environment)


@dataclass(frozen=True)
class Contender:
    name: str
    system: System
    path: str | None = None
    """Where its requests must run."""
    is_told: bool = False
    """Whether its requests say their SLO in Baton's headers."""

    @property
    def ports(self) -> list[int]:
        return getattr(self.system, "ports", [self.system.port])

    def ttft_s(self, slos: Mapping[str, Slo]) -> dict[str, float] | None:
        """The objective by kind of request, in seconds, if requests say by a priority when they are due."""
        has_priorities = isinstance(self.system, Colocated) and self.system.rules.by_priority
        return {kind: slo.ttft_s for kind, slo in slos.items()} if has_priorities else None

    def headers(self, slos: Mapping[str, Slo]) -> dict[str, dict[str, str]]:
        """By kind of request."""
        return {kind: self._headers(slo) for kind, slo in slos.items()}

    def _headers(self, slo: Slo) -> dict[str, str]:
        headers = {"x-baton-path": self.path} if self.path else {}
        if self.is_told:
            headers["x-baton-ttft-slo-ms"] = f"{1e3 * slo.ttft_s:.1f}"
            headers["x-baton-tpot-slo-ms"] = f"{1e3 * slo.tpot_s:.3f}"
        return headers


def contenders(setting: Setting, generator: Driver, num_workers: int, rules: EngineRules) -> list[Contender]:
    """All contenders in the order of the tables, Baton last. `rules`: of the colocated servers."""
    baton = EqualBaton(setting, generator)
    return [
        Contender(colocated_name(num_workers), Colocated(setting, generator, num_workers, rules)),
        Contender(ROUTED, VllmRouter(setting, generator, num_workers // 2)),
        Contender(FIXED, baton, path="P->D", is_told=True),
        Contender(OURS, baton, is_told=True),
    ]


def known_workers(metrics: str) -> int:
    """The workers that the Scheduler knows, by the text of the service's metrics."""
    return round(sum(map(float, _WORKERS.findall(metrics))))


def adapted(conf: dict[str, Any], num_workers: int) -> dict[str, Any]:
    """A Serve config whose service keeps receipts, lets requests choose their path, and takes each request's own SLO:
    the headers only tighten what the class has. Half of its workers prefill. All workers together get the CPUs that one
    of each pool has in the config.
    """
    application = conf["applications"][0]
    args = application["args"]
    ingress = {**args["ingress"], "keep_receipts": KEPT_RECEIPTS, "allow_path_header": True}
    loose = {"ttft_s": _HOUR_S, "ttft_per_prefill": 0.0, "tpot_s": _HOUR_S}
    pools = {pool: _of_replicas(args.get(pool, {}), num_workers // 2) for pool in ("prefill", "decode")}
    args = {**args, **pools, "ingress": ingress, "slo": {**args.get("slo", {}), "standard": loose}}
    return {**conf, "applications": [{**application, "args": args}]}


def _of_replicas(pool: dict[str, Any], number: int) -> dict[str, Any]:
    """As Ray counts CPUs: the engines of a small machine share its cores."""
    cpus = {"cpus": pool["cpus"] * pool.get("replicas", 1) / number} if "cpus" in pool else {}
    return {**pool, "replicas": number, **cpus}


def started_generator(setting: Setting) -> Driver:
    """The process with the open loop."""
    environment = setting.environment(LOAD_GENERATOR, LOAD_GENERATOR)
    log = setting.log(LOAD_GENERATOR, "process")
    driver = Driver("bench.live.client", [served_name(setting)], environment, log, cwd=setting.folder)
    wait(driver, driver.is_ready)
    return driver


class Stage:
    """The systems that are up, of which one runs at a time."""

    def __init__(self, systems: list[System]) -> None:
        self._systems = systems
        self._running = {system.name for system in systems}

    def enter(self, system: System) -> None:
        """Returns when it can take a load, and the others have stopped."""
        for other in self._systems:
            if other is not system and other.name in self._running:
                _signal(other, signal.SIGSTOP)
                self._running.discard(other.name)
        if system.name not in self._running:
            self._go_on(system)
            time.sleep(SETTLE_S)
            while not _is_ready(system):
                time.sleep(SETTLE_S)

    def leave(self) -> None:
        """All go on, so that they can be stopped in order."""
        for system in self._systems:
            self._go_on(system)

    def _go_on(self, system: System) -> None:
        _signal(system, signal.SIGCONT)
        self._running.add(system.name)


def _is_ready(system: System) -> bool:
    return not isinstance(system, Baton) or get(system.port, "/readyz") is not None


def _signal(system: System, number: signal.Signals) -> None:
    for process in census.processes():
        if process.system == system.name:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
