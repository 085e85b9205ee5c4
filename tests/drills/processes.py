"""The processes of a running service, each known by the replica id that its metrics carry."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.drills.client import Client
from tests.real_cluster.service import (
    DECODE_PROCESS,
    INGRESS_PROCESS,
    PREFILL_PROCESS,
    SCHEDULER_PROCESS,
    wait_for,
)

INGRESS, SCHEDULER, PREFILL, DECODE = "ingress", "scheduler", "prefill", "decode"
PROCESS_NAMES = {
    INGRESS: INGRESS_PROCESS,
    SCHEDULER: SCHEDULER_PROCESS,
    PREFILL: PREFILL_PROCESS,
    DECODE: DECODE_PROCESS,
}
GENERATED_TOKENS = "vllm:generation_tokens_total"
METRICS = ("process_start_time_seconds", "baton_", "vllm:num_requests_", "vllm:kv_cache_usage_perc", GENERATED_TOKENS)
SNAPSHOT_ATTEMPTS = 5
SAME_START_S = 0.02
"""A process's start, as its metrics and as the system have it, differ by rounding."""
KNOWN_WITHIN_S = 10.0
ENGINE_CORE = "VLLM::EngineCore"


@dataclass(frozen=True)
class Replica:
    deployment: str
    id: str
    process: psutil.Process

    @property
    def core(self) -> psutil.Process:
        """The engine core of a worker."""
        return engine_core(self.process)

    def __str__(self) -> str:
        return f"{self.deployment} {self.id}"


class Snapshot:
    """One scrape of the whole service."""

    def __init__(self, samples: list[Sample]) -> None:
        self.taken_at = time.monotonic()
        self._samples = samples

    def total(self, name: str, **labels: str) -> float:
        return sum(sample.value for sample in self._of(name, labels))

    def number(self, name: str) -> int:
        """The number of samples of one metric."""
        return sum(1 for _ in self._of(name, {}))

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """The values of one metric, by one of its labels."""
        return {sample.labels[label]: sample.value for sample in self._of(name, labels)}

    def _of(self, name: str, labels: dict[str, str]) -> Iterator[Sample]:
        return (s for s in self._samples if s.name == name and labels.items() <= s.labels.items())


class AnyService(Protocol):
    """A service, on whatever nodes."""

    port: int

    @property
    def host(self) -> str: ...

    @property
    def url(self) -> str: ...

    def get(self, path: str) -> httpx.Response: ...

    def of_operators(self, path: str) -> httpx.Response: ...

    def processes(self, name: str) -> list[psutil.Process]: ...


class LiveProcesses:
    def __init__(self, service: AnyService) -> None:
        self.service = service

    def snapshot(self) -> Snapshot:
        """Raises httpx.HTTPError while no ingress replica answers."""
        lines = self.service.of_operators("/metrics").raise_for_status().text.splitlines(keepends=True)
        text = "".join(line for line in lines if line.startswith(METRICS))  # to parse all of them takes too long
        return Snapshot([sample for family in text_string_to_metric_families(text) for sample in family.samples])

    def snapshot_of_the_living(self) -> Snapshot:
        """By another ingress replica, if the one that was asked last has just died. The system goes on giving it new
        connections for a moment.
        """
        for _ in range(SNAPSHOT_ATTEMPTS):
            with suppress(httpx.TransportError):
                return self.snapshot()
        return self.snapshot()

    def replicas(self, deployment: str) -> list[Replica]:
        """Those that run.

        Raises:
            TimeoutError: the metrics of one cannot be read.
        """
        processes = self.service.processes(PROCESS_NAMES[deployment])
        known: list[Replica] = []

        def are_known() -> bool:
            starts = self.snapshot_of_the_living().by("replica", "process_start_time_seconds", deployment=deployment)
            known[:] = [
                Replica(deployment, replica, process)
                for replica, started_at in starts.items()
                for process in processes
                if abs(process.create_time() - started_at) < SAME_START_S
            ]
            return len(known) == len(processes)

        wait_for(are_known, KNOWN_WITHIN_S, interval_s=0.1)
        return known

    def connect(self, ingress: Replica, timeout_s: float) -> Client:
        """A client whose connection this ingress replica has taken: the system spreads connections over them."""
        processes = self.service.processes(INGRESS_PROCESS)
        while True:
            client = Client(self.service.port, timeout_s)
            port = client.socket.getsockname()[1]
            wait_for(partial(_is_one_connected, processes, port), timeout_s, interval_s=0.01)
            if _is_connected(ingress.process, port):
                return client
            client.socket.close()

    def is_whole(self, num_replicas: dict[str, int]) -> bool:
        """All replicas run and answer, the Scheduler knows the workers, all pairs are connected, nothing is open."""
        try:
            now = self.snapshot()
        except httpx.HTTPError:
            return False
        present = {d: len(now.by("replica", "process_start_time_seconds", deployment=d)) for d in num_replicas}
        workers = now.by("pool", "baton_workers", deployment=SCHEDULER)
        return (
            present == num_replicas
            and all(len(self.service.processes(PROCESS_NAMES[d])) == number for d, number in num_replicas.items())
            and workers == {pool: num_replicas[pool] for pool in (PREFILL, DECODE)}
            and now.total("baton_links", deployment=SCHEDULER) == num_replicas[PREFILL] * num_replicas[DECODE]
            and now.total("baton_placed_requests") == 0
        )

    def wait_until_quiet(self, num_pairs: int, timeout_s: float) -> None:
        """Whole, and the links of new workers have been measured: that takes a few handoffs of its own."""
        wait_for(lambda: self.snapshot().number("baton_link_latency_seconds") == num_pairs, timeout_s, interval_s=0.25)

    def wait_until_whole(self, num_replicas: dict[str, int], timeout_s: float) -> float:
        return wait_for(lambda: self.is_whole(num_replicas), timeout_s, interval_s=0.25)


def engine_core(worker: psutil.Process) -> psutil.Process:
    (core,) = [child for child in worker.children() if ENGINE_CORE in " ".join(child.cmdline())]
    return core


def _is_one_connected(processes: Iterable[psutil.Process], port: int) -> bool:
    return any(_is_connected(process, port) for process in processes)


def _is_connected(process: psutil.Process, port: int) -> bool:
    connections = process.net_connections(kind="tcp")
    return any(connection.raddr and connection.raddr.port == port for connection in connections)
