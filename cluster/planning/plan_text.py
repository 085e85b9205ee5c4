"""The text of a plan: a table of the computed and the simulated sizing, and where its figures come from. Pure."""

from collections.abc import Callable

from cluster.planning.capacity_plan import CapacityPlan
from cluster.planning.demand import Demand
from cluster.planning.simulated_cell import SimulatedCell, cell_rate
from cluster.planning.sizing import Sizing
from cluster.planning.worker_rate import ADVICE
from cluster.simulation.results.summary import aligned

LINES: tuple[tuple[str, Callable[[Sizing], str]], ...] = (
    ("prefill workers", lambda s: f"{s.pools.num_prefill:,}"),
    ("decode workers", lambda s: f"{s.pools.num_decode:,}"),
    ("P:D", lambda s: f"1:{s.decode_per_prefill:.2f}"),
    ("GPUs", lambda s: f"{s.num_devices:,}"),
    ("requests/s per GPU", lambda s: f"{s.rate_per_device:.3g}"),
    ("attained", lambda s: f"{100 * s.attainment:.1f} % ({_source(s)})"),
    ("tokens of requests in time", lambda s: _percent(s.token_attainment)),
    ("goodput, requests/s", lambda s: f"{s.goodput_per_s:,.6g} ({_source(s)})"),
    ("cells (Schedulers)", lambda s: f"{s.num_cells:,}"),
    ("Scheduler cores, all cells", lambda s: f"{s.scheduler_cores:.3g}"),
    ("handoffs if all are handed over, GB/s", lambda s: f"{s.handoff_bytes_per_s / 1e9:,.3g}"),
    ("  of a prefill worker, GB/s", lambda s: f"{s.per_prefill_worker / 1e9:.3g}"),
    ("  of a decode worker, GB/s", lambda s: f"{s.per_decode_worker / 1e9:.3g}"),
    ("$ per hour", lambda s: f"{s.costs.per_hour:,.2f}" if s.costs else "-"),
    ("$ per million tokens", lambda s: f"{s.costs.per_million_tokens:.3f}" if s.costs else "-"),
    ("$ per million answer tokens", lambda s: f"{s.costs.per_million_answer_tokens:.3f}" if s.costs else "-"),
)
"""Name and cell of each line of the table."""


def plan_table(computed: Sizing, simulated: Sizing | None) -> str:
    shown = [computed] if simulated is None else [computed, simulated]
    rows = [["", "computed", "simulated"][: 1 + len(shown)]]
    return aligned([*rows, *([name, *map(cell, shown)] for name, cell in LINES)])


def derivation(plan: CapacityPlan, demand: Demand) -> list[str]:
    """The bottleneck, and where the computed sizing comes from."""
    pool, bound = plan.bottleneck
    load, decode, limits = plan.prefill_load, plan.decode, plan.decode.limits
    share = max(plan.pools.num_prefill, plan.pools.num_decode) / plan.pools.num_workers
    least = plan.least_workers * plan.pools.tensor_parallel
    return [
        f"Bottleneck: {pool}, which has {100 * share:.0f} % of the workers. It is bound by {bound.value}. "
        f"{ADVICE[bound]}",
        f"Demand: {demand.new:.1f} of {demand.prompt:.1f} prompt tokens are computed, {demand.output:.1f} answer "
        f"tokens. A decoding request has {demand.context:.0f} tokens before it, and {demand.context_at_end:.0f} at "
        "its end.",
        f"Prefill worker: {1e3 * load.busy_s:.2f} ms per prompt (cv^2 {load.squared_cv:.2f}), busy for "
        f"{100 * plan.prefill.busy:.1f} % of its time: {plan.prefill.rate_per_s:.4g} requests/s.",
        f"Decode worker: at most {limits.engine} requests by the engine, {_limit(limits.tpot, limits.engine)} by "
        f"TPOT, {limits.memory:.1f} by {plan.kv_tokens:,} KV tokens. {decode.batch:.1f} on average, in steps of "
        f"{1e3 * decode.step_s:.2f} ms: {decode.worker.rate_per_s:.4g} requests/s.",
        f"At this load a decode worker has {plan.batch:.1f} requests on average, in steps of {1e3 * plan.step_s:.2f} "
        f"ms, and {plan.num_running:,.0f} requests run at a time in all.",
        f"A request takes {1e3 * plan.work_s:.2f} ms of a worker "
        f"at least, wherever it is placed: {least:,} GPUs, if all of them are always busy and no request misses.",
    ]


def checked(cell: SimulatedCell, computed: Sizing, simulated: Sizing, target: float, plan: CapacityPlan) -> list[str]:
    """What the simulated cell says about the computed sizing."""
    change = simulated.num_devices / computed.num_devices - 1
    at_plan = f"{100 * cell.at_plan:.1f} %" if cell.at_plan is not None else f"less than {100 * target:g} %"
    lines = [
        f"Simulated: {cell.num_prefill}P{cell.num_decode}D carries {'' if cell.is_finished else 'at least '}"
        f"{cell.rate_per_s:.4g} requests/s ({cell.num_runs} runs of {cell.run.num_requests} counted requests), and "
        f"attains {at_plan} at the {cell_rate(plan):.4g} that the plan gives it. So the cluster takes "
        f"{abs(100 * change):.0f} % {'fewer' if change < 0 else 'more'} GPUs than computed.",
        f"The shares and the goodput of the simulated column are those of this cell at its {cell.rate_per_s:.4g} "
        f"requests/s, the highest rate at which {100 * target:g} % of the requests and of the tokens were in time.",
        "The simulated Scheduler hands over "
        f"{100 * cell.run.by_path.get('P->D', 0.0):.0f} % of the requests, and runs the others whole where prompts "
        "and answers share steps. The computed sizing hands over all of them.",
    ]
    if simulated.pools.num_workers < plan.least_workers:
        least = plan.least_workers * simulated.pools.tensor_parallel
        lines.append(
            f"The simulated sizing is below the {least:,} GPUs that serve every request: what it saves are the tokens "
            f"of requests that miss. Plan with {least:,} GPUs."
        )
    if not cell.is_finished:
        lines.append("The search ended early, by --cpu-seconds or for want of requests, so the rate is a lower bound.")
    return lines


def _source(sizing: Sizing) -> str:
    """Where the share of a sizing comes from."""
    return "target" if sizing.token_attainment is None else "cell"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _limit(number: int, engine: int) -> str:
    return f"{engine} or more" if number >= engine else f"{number}"
