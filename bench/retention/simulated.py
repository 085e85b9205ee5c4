"""Agents beside chats on a simulated cluster, with and without retention, at equal memory.

make bench-retention
"""

import argparse

import msgspec

from cluster.messages.ids import Pool
from cluster.messages.retention import RetentionCounts
from cluster.simulation.baselines import BASELINES
from cluster.simulation.clock import VirtualLoop
from cluster.simulation.experiment import Cluster
from cluster.simulation.pools.pool_setting import ClusterSetting
from cluster.simulation.pools.simulated_pools import SimulatedPools
from cluster.simulation.results.summary import aligned, measured, quantile
from cluster.simulation.run import serve, uncollected
from cluster.simulation.traffic.agent_tasks import TENANT, AgentTasks, with_chats
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import parse_slos, slo_of
from cluster.simulation.traffic.workload import RequestRecord
from router.pending_placements import PendingPlacements
from router.state import RouterState


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    policy: str
    kept_share: float = 0.0
    pools: tuple[Pool, ...] = (Pool.PREFILL, Pool.DECODE)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    tasks_per_s: float
    chats_per_s: float
    duration_s: float = 300.0


class Result(msgspec.Struct, frozen=True):
    records: list[RequestRecord]
    counts: dict[str, RetentionCounts]


VARIANTS = (
    Variant(name="least loaded, LRU", policy="least_requests"),
    Variant(name="by real prefix, LRU", policy="goodput"),
    Variant(name="by real prefix, retention", policy="goodput", kept_share=0.5),
)
NUM_PREFILL = 1
KV = 0
NUM_WORKERS = 2
MOST_TRIES = 6


def run(variant: Variant, load: Load, seed: int) -> Result:
    cluster = Cluster(max_tries=MOST_TRIES, num_workers=NUM_WORKERS)
    slos = parse_slos("mid")
    chat = MIXES["chat"]
    scale = load.chats_per_s / chat.rate_per_s
    num_chats = int(1.2 * load.chats_per_s * load.duration_s)
    rows = [
        msgspec.structs.replace(row, arrival_s=row.arrival_s / scale, tenant="chat")
        for row in _chats(chat, num_chats, seed)
    ]
    agents = AgentTasks(tasks_per_s=load.tasks_per_s)
    workload = with_chats(agents, rows, load.duration_s, slo_of(slos, cluster.isolated_prefill_s), seed)
    baseline = BASELINES[variant.policy]
    setting = cluster.split(NUM_PREFILL if baseline.has_prefill_pool else 0, baseline.engines)
    setting = _keeping(setting, variant)

    async def simulated() -> Result:
        state = RouterState(
            slos, baseline.make(seed), admits_all=not baseline.has_admission, preempts=baseline.preempts
        )
        scheduler = PendingPlacements(state)
        pools = SimulatedPools(setting, scheduler)
        records = await serve(workload, pools, scheduler)
        return Result(records, {worker.id: worker.retention.counts for worker in pools.workers})

    with uncollected():
        return VirtualLoop().run(simulated())


def _chats(mix, num, seed):
    return generate(mix, num, seed, starts_in_equilibrium=True)


def _keeping(setting: ClusterSetting, variant: Variant) -> ClusterSetting:
    def pool(which, kind):
        share = variant.kept_share if kind in variant.pools else 0.0
        return msgspec.structs.replace(which, engine=msgspec.structs.replace(which.engine, kept_share=share, kv_capacity_tokens=KV or which.engine.kv_capacity_tokens))

    return msgspec.structs.replace(
        setting, prefill=pool(setting.prefill, Pool.PREFILL), decode=pool(setting.decode, Pool.DECODE)
    )


def figures(result: Result) -> list[str]:
    out = []
    records = measured(result.records)
    for name in (TENANT, "chat"):
        ours = [r for r in records if r.tenant == name]
        placed = [r for r in ours if r.path is not None]
        ttfts = sorted(r.ttft_s for r in ours if r.ttft_s is not None)
        hits = sum(r.num_hit_tokens for r in placed) / max(1, sum(r.num_prompt for r in placed))
        good = sum(r.is_good for r in ours) / len(ours)
        out += [
            f"{len(ours)}",
            f"{100 * hits:.1f}%",
            f"{quantile(ttfts, 0.5):.2f}",
            f"{quantile(ttfts, 0.95):.2f}",
            f"{100 * good:.1f}%",
        ]
    span = max(r.arrival_s for r in records) - min(r.arrival_s for r in records)
    out.append(f"{sum(r.is_good for r in records) / span:.2f}")
    paths = [r.path.value if r.path else "-" for r in records if r.tenant == TENANT]
    out.append("/".join(f"{100 * paths.count(p) / len(paths):.0f}" for p in ("P->D", "D", "P", "-")))
    return out


HEAD = [
    "variant",
    "steps",
    "hits",
    "TTFT p50",
    "p95",
    "good",
    "chats",
    "hits",
    "TTFT p50",
    "p95",
    "good",
    "good/s",
    "paths",
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=float, default=0.3)
    parser.add_argument("--chats", type=float, default=20)
    parser.add_argument("--duration", type=float, default=300)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--shares", default="0.5")
    parser.add_argument("--only", default="")
    parser.add_argument("--kv", type=int, default=0)
    o = parser.parse_args()
    global KV
    KV = o.kv
    load = Load(tasks_per_s=o.tasks, chats_per_s=o.chats, duration_s=o.duration)
    variants = [*VARIANTS[:2]]
    for share in o.shares.split(","):
        variants.append(Variant(name=f"retention {share}", policy="goodput", kept_share=float(share)))
        variants.append(
            Variant(name=f"retention {share} D", policy="goodput", kept_share=float(share), pools=(Pool.DECODE,))
        )
    variants = [v for v in variants if not o.only or v.name in o.only.split(";")]
    rows = [HEAD]
    for seed in range(o.seeds):
        for v in variants:
            r = run(v, load, seed)
            rows.append([f"{v.name} s{seed}", *figures(r)])
            print(aligned(rows[-1:]), flush=True)
            tot = {f: sum(getattr(c, f) for c in r.counts.values()) for f in RetentionCounts.__struct_fields__}
            if v.kept_share:
                print("   ", tot, flush=True)
    print(aligned(rows))


if __name__ == "__main__":
    main()
