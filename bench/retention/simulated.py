"""Agents beside chats on a simulated cluster, with and without retention, at equal memory.

    make bench-retention

Each variant serves the same tasks and the same chats, seed by seed. A task's next step comes some time after the answer
to its last one, so a slow answer delays the steps after it. All variants have the same pools, Baton's engines, and
Baton's admission; they differ in where prompts are placed, and in what the engines evict. Differences are
between pairs of runs with one seed, with 95 % intervals. The row with unbounded memory is the ceiling.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from bench.retention.figures import CHATS, RunFigures, TenantFigures, figures_of, mean_with_interval
from bench.retention.idle_ages import idle_ages
from cluster.simulation.baselines import BASELINES, Baseline, least_requests, prefix_affinity, with_filter
from cluster.simulation.clock import VirtualLoop
from cluster.simulation.engine.engine_setting import Engines
from cluster.simulation.experiment import Cluster
from cluster.simulation.pools.pool_setting import ClusterSetting, PoolSetting
from cluster.simulation.pools.simulated_pools import SimulatedPools
from cluster.simulation.results.summary import aligned
from cluster.simulation.run import serve
from cluster.simulation.traffic.agent_tasks import AgentTasks, with_chats
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import parse_slos, slo_of
from cluster.simulation.traffic.workload import SimRequest
from cluster.uncollected import uncollected
from router.pending_placements import PendingPlacements
from router.placement.candidates import Policy
from router.state import RouterState

MOST_TRIES = 6
"""Times that a client sends a request. An agent whose request is refused sends it again."""
BLOCK_TOKENS = 64
"""Tokens of a KV block. Fewer simulate for longer; more take short next steps for other conversations."""
UNBOUNDED_TOKENS = 20_000_000
"""KV memory from which no run of these loads evicts anything."""
SLOS = parse_slos("mid")
OURS = BASELINES["goodput"]


def _rival(rule: Policy) -> Baseline:
    """Another choice of workers, with Baton's admission and engines."""
    return Baseline(lambda seed: with_filter(rule), has_prefill_pool=False, has_admission=True, engines=Engines.BATON)


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    rule: Baseline = OURS
    keeps: bool = False
    has_tier: bool = False
    is_unbounded: bool = False
    against: str = ""
    """The variant that it is compared with."""


LRU, LRU_TIER = "by real prefix, LRU", "by real prefix, LRU, tier"
VARIANTS = (
    Variant(name="least requests, LRU", rule=_rival(least_requests), against=LRU),
    Variant(name="prefix affinity, LRU", rule=_rival(prefix_affinity), against=LRU),
    Variant(name=LRU),
    Variant(name="by real prefix, retention", keeps=True, against=LRU),
    Variant(name=LRU_TIER, has_tier=True, against=LRU),
    Variant(name="by real prefix, retention, tier", keeps=True, has_tier=True, against=LRU_TIER),
    Variant(name="by real prefix, unbounded", is_unbounded=True, against=LRU),
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
    host_tokens: int
    """DRAM tier of each worker in the variants with a tier, in tokens."""
    kept_share: float

    def setting(self, variant: Variant) -> ClusterSetting:
        setting = self.cluster.split(self.num_prefill, variant.rule.engines)
        prefill, decode = self._pool(setting.prefill, variant), self._pool(setting.decode, variant)
        return msgspec.structs.replace(setting, prefill=prefill, decode=decode)

    def _pool(self, pool: PoolSetting, variant: Variant) -> PoolSetting:
        engine = msgspec.structs.replace(
            pool.engine,
            block_size=BLOCK_TOKENS,
            kept_share=self.kept_share if variant.keeps else 0.0,
            host_tokens=self.host_tokens if variant.has_tier else 0,
            kv_capacity_tokens=UNBOUNDED_TOKENS
            if variant.is_unbounded
            else self.kv_tokens or pool.engine.kv_capacity_tokens,
        )
        return msgspec.structs.replace(pool, engine=engine)


def workload_of(load: Load, cluster: Cluster, seed: int) -> list[SimRequest]:
    mix = msgspec.structs.replace(MIXES["chat"], rate_per_s=load.chats_per_s)  # people think as long at any rate
    num_chats = int(1.2 * load.chats_per_s * load.duration_s)
    drawn = generate(mix, num_chats, seed, starts_in_equilibrium=True, block_tokens=BLOCK_TOKENS)
    chats = [msgspec.structs.replace(row, tenant=CHATS) for row in drawn]
    agents = AgentTasks(tasks_per_s=load.tasks_per_s, block_tokens=BLOCK_TOKENS)
    return with_chats(agents, chats, load.duration_s, slo_of(SLOS, cluster.isolated_prefill_s), seed)


def run(variant: Variant, hardware: Hardware, load: Load, seed: int) -> RunFigures:
    workload = workload_of(load, hardware.cluster, seed)

    async def simulated() -> RunFigures:
        state = RouterState(SLOS, variant.rule.make(seed), preempts=variant.rule.preempts)
        scheduler = PendingPlacements(state)
        pools = SimulatedPools(hardware.setting(variant), scheduler)
        with idle_ages(asyncio.get_running_loop().time) as ages:
            records = await serve(workload, pools, scheduler)
        return figures_of(workload, records, ages, [worker.retention.counts for worker in pools.workers])

    with uncollected():
        return VirtualLoop().run(simulated())


# ---- tables

Runs = dict[str, list[RunFigures]]
"""The runs of each variant, by seed."""
SERVED: tuple[tuple[str, Callable[[TenantFigures], float], str], ...] = (
    ("hits %", lambda each: each.hits, ".1f"),
    ("TTFT p50", lambda each: each.p50, ".2f"),
    ("p95 s", lambda each: each.p95, ".2f"),
    ("good %", lambda each: each.good, ".1f"),
)
COUNTED: tuple[tuple[str, Callable[[RunFigures], float], str], ...] = (
    ("same worker %", lambda each: each.same_worker, ".1f"),
    ("refused", lambda each: each.agents.refused + each.chats.refused, ".1f"),
    ("retried", lambda each: each.agents.retried + each.chats.retried, ".1f"),
    ("idle p5", lambda each: each.idle_p5, ".1f"),
    ("p50 s", lambda each: each.idle_p50, ".1f"),
    ("returned", lambda each: each.counts.returned, ".0f"),
    ("expired", lambda each: each.counts.expired, ".0f"),
    ("dropped", lambda each: each.counts.dropped, ".0f"),
    ("late", lambda each: each.counts.late, ".0f"),
    ("blocks hit", lambda each: each.counts.hit_blocks, ".0f"),
    ("taken", lambda each: each.counts.taken_blocks, ".0f"),
    ("dead", lambda each: each.counts.dead_blocks, ".0f"),
)


def tables(runs: Runs) -> list[str]:
    served = [["", "agents:", *(name for name, _, _ in SERVED), "chats:", *(name for name, _, _ in SERVED)]]
    counted = [["", *(name for name, _, _ in COUNTED)]]
    for name, each in runs.items():
        agents, chats = [one.agents for one in each], [one.chats for one in each]
        row = [name]
        for tenant in (agents, chats):
            row += [f"{fmean(one.number for one in tenant):.0f}"]
            row += [format(fmean(map(value, tenant)), form) for _, value, form in SERVED]
        served.append(row)
        counted.append([name, *(format(fmean(map(value, each)), form) for _, value, form in COUNTED)])
    return [aligned(served), aligned(counted), aligned(differences(runs))]


def differences(runs: Runs) -> list[list[str]]:
    rows = [["", *(f"{who} {name}" for who in ("agents", "chats") for name, _, _ in SERVED)]]
    for variant in VARIANTS:
        if variant.name not in runs or variant.against not in runs:
            continue
        row = [f"{variant.name} - {variant.against}"]
        for tenant in (_agents, _chats):
            for _, value, _ in SERVED:
                pairs = zip(runs[variant.name], runs[variant.against], strict=True)
                row.append(mean_with_interval([value(tenant(ours)) - value(tenant(theirs)) for ours, theirs in pairs]))
        rows.append(row)
    return rows


def _agents(figures: RunFigures) -> TenantFigures:
    return figures.agents


def _chats(figures: RunFigures) -> TenantFigures:
    return figures.chats


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=float, default=0.17, help="tasks that begin per second")
    parser.add_argument("--chats", type=float, default=6.0, help="requests of chats per second")
    parser.add_argument("--duration", type=float, default=100.0, help="seconds in which tasks begin")
    parser.add_argument("--workers", type=int, default=2, help="workers in both pools together")
    parser.add_argument(
        "--prefill", type=int, default=0, help="prefill workers of them; with some, only Baton's placement is run"
    )
    parser.add_argument("--kv", type=int, default=0, help="KV memory of a worker in tokens, instead of the device's")
    parser.add_argument("--host", type=int, default=250_000, help="DRAM tier of a worker, in the variants with a tier")
    parser.add_argument("--share", type=float, default=0.5, help="kept_share of the variants with retention")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each variant, with other tasks and chats")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first of them")
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("--only", choices=names, action="append", help="these variants alone")
    options = parser.parse_args(arguments)
    hardware = Hardware(
        cluster=Cluster(max_tries=MOST_TRIES, num_workers=options.workers),
        num_prefill=options.prefill,
        kv_tokens=options.kv,
        host_tokens=options.host,
        kept_share=options.share,
    )
    load = Load(tasks_per_s=options.tasks, chats_per_s=options.chats, duration_s=options.duration)
    chosen = [
        variant
        for variant in VARIANTS
        if variant.name in (options.only or names) and (not options.prefill or variant.rule is OURS)
    ]
    runs: Runs = {variant.name: [] for variant in chosen}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for variant in chosen:
            runs[variant.name].append(run(variant, hardware, load, seed))
            print(seed, variant.name, runs[variant.name][-1].agents, file=sys.stderr, flush=True)
    print("\n\n".join(tables(runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
