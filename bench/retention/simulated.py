"""Agents beside chats on a simulated cluster, with and without retention, at equal memory.

    make bench-retention

Each variant serves the same tasks and the same chats. A task's next step comes some time after the answer to its last
one, so a slow answer delays the steps after it.
"""

import argparse
import sys
from collections.abc import Sequence

import msgspec

from cluster.simulation.baselines import BASELINES
from cluster.simulation.clock import VirtualLoop
from cluster.simulation.experiment import Cluster
from cluster.simulation.pools.pool_setting import ClusterSetting, PoolSetting
from cluster.simulation.pools.simulated_pools import SimulatedPools
from cluster.simulation.results.summary import aligned, measured, quantile
from cluster.simulation.run import serve, uncollected
from cluster.simulation.traffic.agent_tasks import TENANT, AgentTasks, with_chats
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import parse_slos, slo_of
from cluster.simulation.traffic.workload import RequestRecord, SimRequest
from router.pending_placements import PendingPlacements
from router.state import RouterState

CHATS = "chats"
MOST_TRIES = 6
"""Times that a client sends a request. An agent whose request is refused sends it again."""
SLOS = parse_slos("mid")
HEADING = [
    *("", "steps", "hits", "TTFT p50", "p95 s", "good"),
    *("chats", "hits", "TTFT p50", "p95 s", "good", "good/s"),
]


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    policy: str = "goodput"
    keeps: bool = False


VARIANTS = (
    Variant(name="least loaded, LRU", policy="least_requests"),
    Variant(name="by real prefix, LRU"),
    Variant(name="by real prefix, retention", keeps=True),
)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    tasks_per_s: float
    chats_per_s: float
    duration_s: float


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    cluster: Cluster
    num_prefill: int
    kv_tokens: int
    """KV memory of each worker, in tokens. 0 takes what the device has."""
    kept_share: float

    def setting(self, variant: Variant) -> ClusterSetting:
        baseline = BASELINES[variant.policy]
        setting = self.cluster.split(self.num_prefill if baseline.has_prefill_pool else 0, baseline.engines)
        share = self.kept_share if variant.keeps else 0.0
        return msgspec.structs.replace(
            setting, prefill=self._pool(setting.prefill, share), decode=self._pool(setting.decode, share)
        )

    def _pool(self, pool: PoolSetting, share: float) -> PoolSetting:
        tokens = self.kv_tokens or pool.engine.kv_capacity_tokens
        return msgspec.structs.replace(
            pool, engine=msgspec.structs.replace(pool.engine, kept_share=share, kv_capacity_tokens=tokens)
        )


def workload_of(load: Load, cluster: Cluster, seed: int) -> list[SimRequest]:
    mix = msgspec.structs.replace(MIXES["chat"], rate_per_s=load.chats_per_s)  # people think as long at any rate
    num_chats = int(1.2 * load.chats_per_s * load.duration_s)
    chats = [
        msgspec.structs.replace(row, tenant=CHATS) for row in generate(mix, num_chats, seed, starts_in_equilibrium=True)
    ]
    agents = AgentTasks(tasks_per_s=load.tasks_per_s)
    return with_chats(agents, chats, load.duration_s, slo_of(SLOS, cluster.isolated_prefill_s), seed)


def run(variant: Variant, hardware: Hardware, load: Load, seed: int) -> list[RequestRecord]:
    workload = workload_of(load, hardware.cluster, seed)
    baseline = BASELINES[variant.policy]

    async def simulated() -> list[RequestRecord]:
        admits_all = not baseline.has_admission
        state = RouterState(SLOS, baseline.make(seed), admits_all=admits_all, preempts=baseline.preempts)
        scheduler = PendingPlacements(state)
        return await serve(workload, SimulatedPools(hardware.setting(variant), scheduler), scheduler)

    with uncollected():
        return VirtualLoop().run(simulated())


def row(name: str, records: Sequence[RequestRecord]) -> list[str]:
    counted = measured(records)
    cells = [name]
    for tenant in (TENANT, CHATS):
        ours = [record for record in counted if record.tenant == tenant]
        ttfts = sorted(record.ttft_s for record in ours if record.ttft_s is not None) or [0.0]
        hits = sum(record.num_hit_tokens for record in ours) / max(1, sum(record.num_prompt for record in ours))
        good = sum(record.is_good for record in ours) / max(1, len(ours))
        cells += [f"{len(ours)}", f"{100 * hits:.1f}%", *(f"{quantile(ttfts, p):.2f}" for p in (0.5, 0.95))]
        cells.append(f"{100 * good:.1f}%")
    span_s = counted[-1].arrival_s - counted[0].arrival_s
    return [*cells, f"{sum(record.is_good for record in counted) / span_s:.2f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=float, default=0.17, help="tasks that begin per second")
    parser.add_argument("--chats", type=float, default=6.0, help="requests of chats per second")
    parser.add_argument("--duration", type=float, default=100.0, help="seconds in which tasks begin")
    parser.add_argument("--workers", type=int, default=2, help="workers in both pools together")
    parser.add_argument("--prefill", type=int, default=1, help="prefill workers of them")
    parser.add_argument("--kv", type=int, default=0, help="KV memory of a worker in tokens, instead of the device's")
    parser.add_argument("--share", type=float, default=0.5, help="kept_share of the variant with retention")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each variant, with other tasks and chats")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first of them")
    parser.add_argument("--only", choices=[variant.name for variant in VARIANTS], help="one variant alone")
    options = parser.parse_args(arguments)
    hardware = Hardware(
        cluster=Cluster(max_tries=MOST_TRIES, num_workers=options.workers),
        num_prefill=options.prefill,
        kv_tokens=options.kv,
        kept_share=options.share,
    )
    load = Load(tasks_per_s=options.tasks, chats_per_s=options.chats, duration_s=options.duration)
    rows = [HEADING]
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for variant in VARIANTS:
            if options.only in (None, variant.name):
                rows.append(row(f"{variant.name} ({seed})", run(variant, hardware, load, seed)))
                print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    print(aligned(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
