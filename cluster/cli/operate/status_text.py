"""The screen of `baton status`. Pure."""

from collections.abc import Iterator

from cluster.cli.operate.visible import visible
from cluster.diagnosis.answer import RunningFacts, number, share
from cluster.diagnosis.health import Health
from cluster.messages.ids import Pool
from cluster.messages.operations import SchedulerStatus, WorkerCondition, WorkerStatus

MOST_WORKERS = 30
"""Rows of workers. Workers that are not ready, and busy ones, come first. More does not fit on a screen; fewer hides
workers.
"""
HEADER = ("worker", "pool", "node", "state", "open", "running", "waiting", "leases", "KV", "links", "report")
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
"""In seconds."""


def status_text(facts: RunningFacts, health: Health, problems: list[str]) -> str:
    return "\n".join(map(visible, [*_head(facts, health, problems), "", *_workers(facts)]))


def lasting(seconds: float) -> str:
    """A time in its two largest units."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min {seconds % _MINUTE:.0f} s"
    if seconds < _DAY:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"
    return f"{seconds // _DAY:.0f} d {seconds % _DAY // _HOUR:.0f} h"


def _head(facts: RunningFacts, health: Health, problems: list[str]) -> Iterator[str]:
    status, settings = facts.status, facts.status.settings
    yield f"{status.application}: {health}{': ' if problems else ''}{'; '.join(problems)}"
    yield _line("Baton", f"{settings.version}, model {settings.model}")
    for scheduler in status.schedulers:
        yield _line("Scheduler", _scheduler(scheduler))
    yield _line("Goodput", _goodput(facts))
    yield _line("Requests", _requests(facts))
    yield _line("Ingress", _ingress(facts))
    stores = [f"{store.name} {'there' if store.is_there else 'AWAY'}" for store in status.stores]
    yield _line("Stores", ", ".join(stores))
    if len(status.cells) > 1:
        yield _line("Cells", ", ".join(f"{cell.name} {cell.state}" for cell in status.cells))


def _line(name: str, text: str) -> str:
    return f"{name:10} {text}"


def _scheduler(scheduler: SchedulerStatus) -> str:
    cell = f"cell {scheduler.cell}, " if isinstance(scheduler.cell, str) else ""
    waiting = ", ".join(f"{slo_class} {num}" for slo_class, num in scheduler.waiting.items() if num) or "none"
    if any(scheduler.waiting.values()):
        waiting += f", for up to {scheduler.oldest_wait_s:.1f} s"
    return (
        f"{cell}epoch {scheduler.epoch}, up {lasting(scheduler.up_s)}; {scheduler.num_open} open requests; "
        f"waiting: {waiting}"
    )


def _goodput(facts: RunningFacts) -> str:
    by_class = facts.figures.by("baton_goodput_requests_total", "slo_class")
    if not by_class:
        return f"no request has ended {facts.during}"
    good = facts.figures.by("baton_goodput_requests_total", "slo_class", result="good")
    classes = [f"{name} {share(good.get(name, 0.0), total)} of {number(total)}" for name, total in by_class.items()]
    whole = share(sum(good.values()), sum(by_class.values()))
    return f"{whole} {facts.during}: {', '.join(classes)}"


def _requests(facts: RunningFacts) -> str:
    paths = facts.figures.by("baton_requests_total", "path", outcome="finished")
    others = {
        outcome: total
        for outcome, total in facts.figures.by("baton_requests_total", "outcome").items()
        if outcome != "finished"
    }
    shown = [f"{name} {number(total)}" for name, total in [*paths.items(), *others.items()]]
    return f"{', '.join(shown) or 'none'} {facts.during}"


def _ingress(facts: RunningFacts) -> str:
    """Each replica with a page of metrics has a sample of its memory, which is never 0."""
    replicas = set(facts.figures.by("process_resident_memory_bytes", "replica", deployment="ingress"))
    missing = facts.figures.total("baton_scrape_missing")
    silent = f"; {missing:.0f} replicas of all kinds did not answer" if missing else ""
    return f"{len(replicas)} replicas; the one that answers is up {lasting(facts.status.replica_up_s)}{silent}"


def _workers(facts: RunningFacts) -> list[str]:
    workers = sorted(facts.workers, key=_order)
    if not workers:
        return ["no worker reports to a Scheduler"]
    num_other = {pool: sum(worker.pool is not pool for worker in workers) for pool in Pool}
    has_cells = any(isinstance(worker.cell, str) for worker in workers)
    header = (*HEADER, "cell") if has_cells else HEADER
    rows = [_row(worker, num_other[worker.pool], has_cells=has_cells) for worker in workers[:MOST_WORKERS]]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
    if len(workers) > MOST_WORKERS:
        lines.append(f"and {len(workers) - MOST_WORKERS} more, all as these (--json shows them)")
    return lines


def _order(worker: WorkerStatus) -> tuple[bool, int, str, str]:
    return worker.condition is WorkerCondition.READY, -worker.num_open, worker.pool, worker.worker


def _row(worker: WorkerStatus, num_other: int, *, has_cells: bool) -> tuple[str, ...]:
    row = (
        worker.worker,
        worker.pool,
        worker.host,
        _state(worker),
        f"{worker.num_open}",
        f"{worker.num_running}",
        f"{worker.num_waiting}",
        f"{worker.num_leases}" if worker.pool is Pool.PREFILL else "-",
        f"{worker.kv_usage:.0%}",
        f"{worker.num_links}" if has_cells else f"{worker.num_links}/{num_other}",
        f"{worker.report_age_s:.1f} s",
    )
    return (*row, str(worker.cell)) if has_cells else row


def _state(worker: WorkerStatus) -> str:
    if worker.condition is WorkerCondition.DRAINING:
        return "draining, empty" if worker.is_empty else "draining"
    held = f", held by {worker.num_holds}" if worker.num_holds else ""
    return f"{worker.condition}{held}"
