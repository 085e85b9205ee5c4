"""Tables for people and JSON for programs, from the same figures."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from bench.fronts.cost import Cost, cost, idle_ms_per_s, percentile, total
from bench.fronts.measure import Cell, Plan, Results, Run

FLOOR, PEER, OURS = "bare", "vllm-router", "baton"
_PACE_TOLERANCE = 1.25
_STRANGERS_TOLERANCE = 0.05


@dataclass(frozen=True)
class Figures:
    """What one cell comes to. All CPU time is the front's, without engine cores."""

    cost: Cost
    idle_ms_per_s: dict[str, float]
    ttft_p50_ms: float
    ttft_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    tokens_per_s: float
    prompt_tokens: int
    """Median."""
    token_us_by_round: list[float]
    gross_cpu_s: dict[str, float]
    """CPU time in the long runs, idle cost included."""
    engine_cpu_s: float
    generator_cpu_s: float
    """CPU time of the load generator in the long runs."""
    strangers_cpu_share: float
    """CPU time of processes that have nothing to do with the benchmark, per second of its runs."""

    @property
    def request_ms(self) -> float:
        return sum(self.cost.request_ms.values())

    @property
    def token_us(self) -> float:
        return sum(self.cost.token_us.values())


def figures(results: Results) -> dict[Cell, Figures]:
    return {cell: _figures(results, cell) for cell in results.long}


def _figures(results: Results, cell: Cell) -> Figures:
    short_runs, long_runs = results.short[cell], results.long[cell]
    runs = [*short_runs, *long_runs]
    idle = total(results.idle[cell.system])
    short, long = total(run.work for run in short_runs), total(run.work for run in long_runs)
    ttfts_s = [trace.ttft_s for run in runs for trace in run.traces]
    gaps_s = [gap for run in long_runs for trace in run.traces for gap in trace.gaps_s]
    by_round = [cost(a.work, b.work, idle).token_us.values() for a, b in zip(short_runs, long_runs, strict=True)]
    return Figures(
        cost=cost(short, long, idle),
        idle_ms_per_s=idle_ms_per_s(idle),
        ttft_p50_ms=1e3 * percentile(ttfts_s, 50),
        ttft_p99_ms=1e3 * percentile(ttfts_s, 99),
        gap_p50_ms=1e3 * percentile(gaps_s, 50),
        gap_p99_ms=1e3 * percentile(gaps_s, 99),
        tokens_per_s=long.tokens / sum(run.load_s for run in long_runs),
        prompt_tokens=round(percentile([trace.prompt_tokens for run in runs for trace in run.traces], 50)),
        token_us_by_round=[sum(roles) for roles in by_round],
        gross_cpu_s=dict(long.cpu_s),
        engine_cpu_s=sum(run.engine_cpu_s for run in long_runs),
        generator_cpu_s=sum(run.generator_cpu_s for run in long_runs),
        strangers_cpu_share=_strangers_share(runs),
    )


def _strangers_share(runs: list[Run]) -> float:
    return sum(run.strangers_cpu_s for run in runs) / sum(run.work.wall_s for run in runs)


def tables(plan: Plan, cells: dict[Cell, Figures], *, by_process: bool) -> str:
    blocks = []
    for mode in plan.paces_s:
        blocks.append(_mode_table(mode, plan, cells))
        if by_process:
            blocks.append(_process_table(mode, cells))
    blocks += [_goals(plan, cells), _warnings(plan, cells)]
    return "\n\n".join(block for block in blocks if block)


def _mode_table(mode: str, plan: Plan, cells: dict[Cell, Figures]) -> str:
    pace_s = plan.paces_s[mode]
    title = f"{mode}: " + (f"an engine step takes at least {1e3 * pace_s:.0f} ms" if pace_s else "engines go freely")
    head = ["system", "streams", "us/token", "(by round)", "ms/request", "idle ms/s"]
    head += ["TTFT p50", "p99 ms", "gap p50", "p99 ms", "tokens/s"]
    rows = []
    for cell, f in _of_mode(mode, cells):
        spread = f"{min(f.token_us_by_round):.0f}-{max(f.token_us_by_round):.0f}"
        row = [cell.system, str(cell.streams), f"{f.token_us:.0f}", spread, f"{f.request_ms:.2f}"]
        row += [f"{sum(f.idle_ms_per_s.values()):.1f}", f"{f.ttft_p50_ms:.0f}", f"{f.ttft_p99_ms:.0f}"]
        rows.append([*row, f"{f.gap_p50_ms:.1f}", f"{f.gap_p99_ms:.1f}", f"{f.tokens_per_s:.0f}"])
    return f"{title}\n{_aligned([head, *rows])}"


def _process_table(mode: str, cells: dict[Cell, Figures]) -> str:
    head = ["system", "streams", "process", "us/token", "ms/request", "idle ms/s"]
    rows = []
    for cell, f in _of_mode(mode, cells):
        for role in sorted(f.cost.token_us, key=lambda role: -f.gross_cpu_s[role]):
            row = [cell.system, str(cell.streams), role, f"{f.cost.token_us[role]:.0f}"]
            rows.append([*row, f"{f.cost.request_ms.get(role, 0.0):.2f}", f"{f.idle_ms_per_s.get(role, 0.0):.1f}"])
    return f"{mode}, by process\n{_aligned([head, *rows])}"


def _goals(plan: Plan, cells: dict[Cell, Figures]) -> str:
    """The figures that Baton is judged by, where the systems for them have been measured."""
    rows = [["mode", "streams", f"us/token, {OURS} / {PEER}", "ms/request", f"gap p99, {OURS} / {FLOOR}"]]
    for mode in plan.paces_s:
        for streams in plan.streams:
            ours, peer, floor = (cells.get(Cell(mode, streams, name)) for name in (OURS, PEER, FLOOR))
            row = [mode, str(streams), "-", "-", "-"]
            if ours and peer:
                row[2:4] = [f"{ours.token_us / peer.token_us:.2f}", f"{ours.request_ms / peer.request_ms:.2f}"]
            if ours and floor:
                row[4] = f"{ours.gap_p99_ms / floor.gap_p99_ms:.2f}"
            rows.append(row)
    return "Ratios\n" + _aligned(rows) + _added_ttft(plan, cells)


def _added_ttft(plan: Plan, cells: dict[Cell, Figures]) -> str:
    free = next((mode for mode, pace_s in plan.paces_s.items() if not pace_s), None)
    floor = cells.get(Cell(free, 1, FLOOR)) if free else None
    if free is None or floor is None:
        return ""
    lines = [
        f"  {cell.system}: {f.ttft_p50_ms - floor.ttft_p50_ms:+.1f} ms"
        for cell, f in _of_mode(free, cells)
        if cell.streams == 1 and cell.system != FLOOR
    ]
    return f"\n\nTTFT p50 added over {FLOOR} ({floor.ttft_p50_ms:.1f} ms), one stream, unpaced\n" + "\n".join(lines)


def _warnings(plan: Plan, cells: dict[Cell, Figures]) -> str:
    """What speaks against the figures."""
    lines = []
    for cell, f in cells.items():
        where, pace_ms = f"{cell.mode}, {cell.streams} streams, {cell.system}", 1e3 * plan.paces_s[cell.mode]
        if cell.system == FLOOR and pace_ms and f.gap_p50_ms > _PACE_TOLERANCE * pace_ms:
            lines.append(f"  {where}: a step takes {f.gap_p50_ms:.0f} ms, more than the pace: raise --pace-ms")
        if f.strangers_cpu_share > _STRANGERS_TOLERANCE:
            lines.append(f"  {where}: other processes took {100 * f.strangers_cpu_share:.0f} % of a core")
    return "\n".join(["Disturbed", *lines]) if lines else ""


def to_json(machine: str, plan: Plan, cells: dict[Cell, Figures]) -> dict[str, Any]:
    rows = [
        {**asdict(cell), "token_us": f.token_us, "request_ms": f.request_ms, **asdict(f)} for cell, f in cells.items()
    ]
    return {"machine": machine, "plan": asdict(plan), "cells": rows}


def _of_mode(mode: str, cells: dict[Cell, Figures]) -> Iterable[tuple[Cell, Figures]]:
    """Runs of one mode, in the order of their measurement."""
    return ((cell, f) for cell, f in cells.items() if cell.mode == mode)


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            text.ljust(width) if number == 0 else text.rjust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(lines)
