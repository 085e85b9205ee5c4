"""A report as text. Pure."""

from collections.abc import Callable

from cluster.load.record import LATE_S, LoadEnding
from cluster.load.report.document import HighestRate, LoadReport, LoadSetup, warnings
from cluster.load.report.figures import Gaps, Latency, LoadFigures
from cluster.load.report.intervals import Estimate
from cluster.simulation.results.summary import aligned

Rows = list[list[str]]


def report_text(report: LoadReport) -> str:
    """The whole report. The last line has no end."""
    run = report.shown
    blocks = [_heading(report.setup, run), aligned(_rate_rows(report.runs)), aligned(latency_rows(run))]
    blocks += [_answers(run), aligned(_error_rows(run)) if run.errors else "", _generator(run)]
    blocks += [highest_line(report), "\n".join(f"warning: {line}" for line in warnings(report))]
    return "\n\n".join(block for block in blocks if block)


def highest_line(report: LoadReport) -> str:
    found = report.highest_rate
    if found is None:
        return ""
    if not found.per_s:
        return f"No rate that was tried attained {found.target:.0%}."
    bound = "" if found.is_bounded else " It is the highest that was tried: there may be more."
    attained = f"{found.attainment.value:.1%}, interval {between(found.attainment, _percent)}"
    return (
        f"{found.per_s:.3g} req/s is the highest rate that attained {found.target:.0%} ({attained}).{bound}\n"
        f"{_sure(found)}"
    )


def _sure(found: HighestRate) -> str:
    """How much of the outcome is chance."""
    up_to = f"up to {found.surely_per_s:.3g} req/s" if found.surely_per_s is not None else "at no rate that was tried"
    missed = found.surely_missed_per_s
    begin = f"from {missed:.3g} req/s on" if missed is not None else "at no rate that was tried"
    return f"The whole interval is above {found.target:.0%} {up_to}, and below it {begin}."


def _heading(setup: LoadSetup, run: LoadFigures) -> str:
    loop = f"closed loop with {setup.num_users} users" if setup.num_users else "open loop"
    counted = "from when a request was due" if setup.num_users is None else "from when a request was sent"
    slos = ", ".join(
        f"{slo_class} {1e3 * slo.ttft_s:g} ms TTFT and {1e3 * slo.tpot_s:g} ms TPOT"
        for slo_class, slo in setup.slos.items()
        if slo_class in run.attainment_by_class
    )
    return (
        f"{setup.model} at {setup.url} ({setup.api}), {loop}, {setup.workload}, seed {setup.seed}\n"
        f"SLO: {slos}. TTFT and E2E count {counted}. Intervals are of 95 %."
    )


def _rate_rows(runs: list[LoadFigures]) -> Rows:
    rows = [["asked req/s", "offered", "good/s", "attained", "95 %", "finished/s", "refused", "failed", "tokens/s"]]
    for run in runs:
        attained = run.attainment
        rows.append(
            [
                f"{run.rate_asked:.3g}" if run.rate_asked is not None else "closed loop",
                f"{run.offered_per_s:.2f}",
                f"{run.goodput_per_s.value:.2f}",
                f"{attained.value:.1%}",
                between(attained, _percent),
                f"{run.finished_per_s:.2f}",
                str(num_refused(run)),
                str(num_failed(run)),
                f"{run.output_tokens_per_s:.0f}",
            ]
        )
    return rows


def latency_rows(run: LoadFigures) -> Rows:
    """Quantiles in milliseconds, with their intervals."""
    rows = [["ms", "mean", "p50", "95 %", "p90", "95 %", "p99", "95 %", "max"]]
    for name, latency in (("TTFT", run.ttft_s), ("TPOT", run.tpot_s), ("E2E", run.e2e_s)):
        rows.append([name, *_latency_cells(latency)])
    rows.append(["ITL", *_gap_cells(run.itl_s)])
    return rows


def _latency_cells(latency: Latency | None) -> list[str]:
    if latency is None:
        return ["-"] * 8
    cells = [_ms(latency.mean)]
    for estimate in (latency.p50, latency.p90, latency.p99):
        cells += [_ms(estimate.value), between(estimate, _ms)]
    return [*cells, _ms(latency.max)]


def _gap_cells(gaps: Gaps | None) -> list[str]:
    if gaps is None:
        return ["-"] * 8
    return ["", _ms(gaps.p50), "", _ms(gaps.p90), "", _ms(gaps.p99), "", _ms(gaps.max)]


def _answers(run: LoadFigures) -> str:
    cached = f"{run.cached_share:.1%} of the prompt tokens were cached" if run.cached_share is not None else ""
    classes = ", ".join(f"{slo_class} {share:.1%}" for slo_class, share in run.attainment_by_class.items())
    retry = f"Retry-After was {run.retry_after_p50_s:g} s in the median" if run.retry_after_p50_s is not None else ""
    retried = f"{run.num_retried} requests were sent again" if run.num_retried else ""
    parts = [
        f"{run.num_requests} requests count, after {run.num_warm_up} of warm-up",
        f"{run.num_stopped} were stopped" if run.num_stopped else "",
        f"{run.mean_prompt:.0f} prompt and {run.mean_output:.0f} output tokens in the mean",
        cached,
        f"attained by class: {classes}" if len(run.attainment_by_class) > 1 else "",
        retry,
        retried,
    ]
    return "; ".join(part for part in parts if part) + "."


def _error_rows(run: LoadFigures) -> Rows:
    rows = [["not finished", "status", "requests", "example"]]
    rows += [
        [error.ending.value, str(error.status or "-"), str(error.number), error.example[:60]] for error in run.errors
    ]
    return rows


def _generator(run: LoadFigures) -> str:
    generator = run.generator
    return (
        f"generator: sent {_ms(run.lag.p50_s)} ms late at p50, {_ms(run.lag.p99_s)} at p99 and {_ms(run.lag.max_s)} at "
        f"most; its event loop {_ms(generator.loop_lag_p99_s)} ms behind at p99 and "
        f"more than {1e3 * LATE_S:.0f} ms in {generator.loop_late_share:.1%} of the time; "
        f"{generator.cpu_share:.0%} of a core; {generator.most_open} requests open at most"
    )


def num_refused(run: LoadFigures) -> int:
    return run.endings.get(LoadEnding.REFUSED, 0)


def num_failed(run: LoadFigures) -> int:
    """Requests that neither finished nor were refused."""
    return run.num_requests - run.endings.get(LoadEnding.FINISHED, 0) - num_refused(run)


def between(estimate: Estimate, shown: Callable[[float], str]) -> str:
    """An interval. `from` has no upper end."""
    low = shown(estimate.low)
    return f"from {low}" if estimate.high is None else f"{low}-{shown(estimate.high)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.1f}"
