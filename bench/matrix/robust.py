"""Rows with something wrong: stale metrics, slow links, a wrong P:D ratio, overload, lost workers.

All of them are the conversation trace at mid TPOT. Each policy has LOAD of its own highest rate in that cell, at its
best setting there. So each begins from where it is good, and a row shows what it loses.
"""

from typing import Any

import msgspec

from bench.matrix.search import Result
from bench.matrix.trials import TrialFile, TrialKey
from cluster.messages.ids import Pool
from cluster.simulation.baselines import BASELINES
from cluster.simulation.engine.truth.truth import Truth
from cluster.simulation.experiment import Cluster, parse_link
from cluster.simulation.pools.pool_setting import Fault
from cluster.simulation.results.summary import RunSummary

CELL = "conversation/mid"
LOAD = 0.9
"""Share of a policy's highest rate. Higher leaves no room for anything wrong; lower hides what is wrong."""
POLICIES = ("goodput", "lmetric_admission", "min_ttft_filter", "lmetric", "pd_mooncake", "pd_threshold")
LOST_AT = 0.4
"""Share of the run after which a worker dies."""
PLAIN = Cluster(host_tokens=1_000_000)


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cluster: Cluster = PLAIN
    num_prefill: int | None = None
    """None: the best split of the policy."""
    load: float = 1.0
    """Relative to the usual one of this policy."""
    loses: Pool | None = None
    """The pool whose first worker dies, at LOST_AT of the run."""
    back_after_s: float | None = None
    policies: tuple[str, ...] = POLICIES


def _changed(**fields: object) -> Cluster:
    return msgspec.structs.replace(PLAIN, **fields)


def _reporting(**fields: float | None) -> Cluster:
    return _changed(reporting=msgspec.structs.replace(PLAIN.reporting, **fields))


SPLIT_POLICIES = tuple(policy for policy in POLICIES if BASELINES[policy].has_prefill_pool)
VARIATIONS = (
    Variation(name="nothing wrong"),
    *(Variation(name=f"{p}P{8 - p}D", num_prefill=p, policies=SPLIT_POLICIES) for p in range(1, 8)),
    *(
        Variation(name=f"metrics {age:g} s old", cluster=_reporting(delay_s=age, kv_events_s=age))
        for age in (0.25, 1.0, 3.0)
    ),
    *(
        Variation(name=f"link {link} GB/s", cluster=_changed(link=parse_link(link)), policies=SPLIT_POLICIES)
        for link in ("50", "12", "5", "1", "0.55")
    ),
    Variation(name="load reports x2", cluster=_reporting(load_scale=2.0)),  # lower ones are below the own accounting
    *(
        Variation(name=f"step times reported x{scale:g}", cluster=_reporting(seconds_scale=scale))
        for scale in (0.5, 2.0)
    ),
    Variation(name="no KV events", cluster=_reporting(kv_events_s=None)),
    Variation(name="a decode worker dies, back after 60 s", loses=Pool.DECODE, back_after_s=60.0),
    Variation(name="a decode worker dies for good", loses=Pool.DECODE),
    Variation(name="a prefill worker dies for good", loses=Pool.PREFILL, policies=SPLIT_POLICIES),
    *(Variation(name=f"load x{load:g}", load=load) for load in (0.1, 2.0, 3.0)),
    Variation(name="load x2, clients retry", load=2.0, cluster=_changed(max_tries=4)),
)


def _with_loss(variation: Variation, duration_s: float) -> Cluster:
    if variation.loses is None:
        return variation.cluster
    at_s = round(LOST_AT * duration_s / variation.load, 3)
    fault = Fault(pool=variation.loses, index=0, at_s=at_s, back_after_s=variation.back_after_s)
    return msgspec.structs.replace(variation.cluster, faults=(fault,))


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one row."""

    name: str
    policy: str
    rate: float
    summary: RunSummary | None


def measure(variation: Variation, at_best: Result, truth: Truth, *trial_file: Any) -> Fixed:
    """`at_best`: the highest rate of the policy in CELL, and its setting there; `truth`: what steps really take there
    and here.
    """
    num_prefill = at_best.num_prefill if variation.num_prefill is None else variation.num_prefill
    rate = LOAD * at_best.rate
    cluster = _with_loss(variation, at_best.num_requests / rate)
    key = TrialKey(
        cell=CELL,
        policy=at_best.policy,
        num_prefill=num_prefill,
        rate=float(f"{variation.load * rate:.6g}"),
        seed=at_best.seed,
        num_requests=at_best.num_requests,
        target=None,
        cluster=msgspec.structs.replace(
            cluster,
            decode_step_tokens=at_best.step_tokens,
            truth=msgspec.structs.replace(truth, seed=at_best.seed),
        ),
    )
    found = TrialFile(*trial_file).get(key).summary
    return Fixed(name=variation.name, policy=at_best.policy, rate=key.rate, summary=found)


def rows(results: list[Fixed]) -> list[tuple[str, ...]]:
    """Attainment and good requests per second, by policy."""
    by_place = {(result.name, result.policy): result.summary for result in results}
    names = list(dict.fromkeys(result.name for result in results))
    table: list[tuple[str, ...]] = [(CELL, *POLICIES)]
    for name in names:
        cells = []
        for policy in POLICIES:
            run = by_place.get((name, policy))
            cells.append(f"{100 * run.attainment:.1f} % {run.goodput_per_s:.2f}/s" if run else "-")
        table.append((name, *cells))
    return table
