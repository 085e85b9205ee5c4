"""What a config wants of the machine that runs all of it. Pure."""

import msgspec

from cluster.config.application import AppConfig
from cluster.messages.transport import Transport

GIB = 1 << 30
PROCESS_BYTES = int(1.2 * GIB)
"""Memory of a worker or an ingress replica beside weights and KV, in bytes: Python, torch and vLLM. Measured with the
demo model on a CPU. More warns of machines that would do; less lets a start run out of memory.
"""
OTHERS_BYTES = int(1.5 * GIB)
"""Memory of everything else together: Ray, the Scheduler, PostgreSQL and both Redis. As PROCESS_BYTES."""

SCHEDULER_CPUS = 0.1
"""CPUs that Ray reserves for a Scheduler (cluster/app.py)."""


class WantedReplicas(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas of one section, each on one node."""

    section: str
    num: int
    cpus: float
    gpus: float
    resources: dict[str, float]
    labels: dict[str, str]


class WantedMachine(msgspec.Struct, frozen=True, kw_only=True):
    replicas: list[WantedReplicas]
    kv_bytes: int | None
    """KV memory of all engines together, where the config says it. None if the engines decide."""
    dram_bytes: int
    """DRAM tiers of all workers together, in /dev/shm."""
    num_engines: int
    num_processes: int
    """Workers and ingress replicas."""
    uses_gpus: bool
    transports: list[Transport]
    """The transports that the pools insist on."""
    max_files: int
    """Files that the busiest process may have open."""

    @property
    def cpus(self) -> float:
        return sum(one.num * one.cpus for one in self.replicas)

    @property
    def gpus(self) -> float:
        return sum(one.num * one.gpus for one in self.replicas)


def wanted_by(config: AppConfig) -> WantedMachine:
    num_cells = len(config.cells.names)
    pools = {"prefill": config.prefill, "decode": config.decode}
    replicas = [
        WantedReplicas(
            section=name,
            num=pool.replicas * num_cells,
            cpus=pool.cpus,
            gpus=pool.gpus,
            resources=dict(pool.resources),
            labels=dict(pool.label_selector),
        )
        for name, pool in pools.items()
    ]
    ingress, scheduler = config.ingress, config.scheduler
    replicas.append(
        WantedReplicas(
            section="ingress",
            num=ingress.replicas,
            cpus=ingress.cpus,
            gpus=0.0,
            resources=dict(ingress.resources),
            labels=dict(ingress.label_selector),
        )
    )
    replicas.append(
        WantedReplicas(
            section="scheduler",
            num=num_cells,
            cpus=SCHEDULER_CPUS,
            gpus=0.0,
            resources=dict(scheduler.resources),
            labels=dict(scheduler.label_selector),
        )
    )
    num_engines = sum(pool.replicas for pool in pools.values()) * num_cells
    kv = [config.pool(pool).engine.get("kv_cache_memory_bytes") for pool in pools.values()]
    return WantedMachine(
        replicas=replicas,
        kv_bytes=_kv_bytes(config) if all(isinstance(one, int) for one in kv) else None,
        dram_bytes=int(sum((pool.tiers.dram_gib or 0.0) * pool.replicas for pool in pools.values()) * GIB * num_cells),
        num_engines=num_engines,
        num_processes=num_engines + ingress.replicas,
        uses_gpus=any(pool.gpus for pool in pools.values()),
        transports=sorted({pool.transport for pool in pools.values() if pool.transport is not None}),
        max_files=2 * ingress.max_connections + 1024,
    )


def _kv_bytes(config: AppConfig) -> int:
    return len(config.cells.names) * sum(
        pool.replicas * int(config.pool(pool).engine["kv_cache_memory_bytes"])
        for pool in (config.prefill, config.decode)
    )
