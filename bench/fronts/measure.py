"""The measurement: round by round, load by load, each system in turn, so that all meet the same conditions."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.fronts import census
from bench.fronts.cost import Work
from bench.fronts.load import Load, Trace
from bench.fronts.pace import write_pace
from bench.fronts.prompts import Prompts
from bench.fronts.systems import LOAD_GENERATOR, System

SETTLE_S = 0.5
"""After each run: what a system does late for its requests is counted with them."""
CALM_S = 2.0
"""Between the last run and an idle window."""


@dataclass(frozen=True)
class Plan:
    paces_s: dict[str, float]
    """The least duration of an engine step, by mode."""
    streams: list[int]
    rounds: int
    tokens: int
    """Tokens of an answer in the long runs. An answer of the short runs has one."""
    least_requests: int
    """The least number of requests in a short run. Each stream sends at least one."""
    least_answers: int
    """The least number of answers in a long run. Each stream gets at least one."""
    idle_s: float


@dataclass(frozen=True)
class Run:
    """One load on one system."""

    work: Work
    """Wall time and CPU time with the settling."""
    load_s: float
    engine_cpu_s: float
    generator_cpu_s: float
    """CPU time of the load generator, or 0 where the system drives itself."""
    strangers_cpu_s: float
    """CPU time of processes that have nothing to do with this benchmark."""
    traces: list[Trace]


@dataclass(frozen=True, order=True)
class Cell:
    mode: str
    streams: int
    system: str


class Results:
    def __init__(self) -> None:
        self.short: dict[Cell, list[Run]] = defaultdict(list)
        self.long: dict[Cell, list[Run]] = defaultdict(list)
        self.idle: dict[str, list[Work]] = defaultdict(list)
        """CPU time of the idle fronts, by system."""


def measure(
    plan: Plan, systems: list[System], prompts: Prompts, pace_file: Path, say: Callable[[str], None]
) -> Results:
    """`say` takes lines about the progress."""
    results = Results()
    _warm_up(plan, systems, prompts, say)
    for number in range(1, plan.rounds + 1):
        for mode, pace_s in plan.paces_s.items():
            write_pace(pace_file, pace_s)
            for streams in plan.streams:
                short = prompts.take(max(plan.least_requests, streams))
                long = prompts.take(max(plan.least_answers, streams))
                for system in systems:
                    cell = Cell(mode, streams, system.name)
                    results.short[cell].append(_run(system, Load(short, streams, 1, system.port)))
                    results.long[cell].append(run := _run(system, Load(long, streams, plan.tokens, system.port)))
                    speed = run.work.tokens / run.load_s
                    say(f"round {number}/{plan.rounds}, {mode}, {streams} streams, {system.name}: {speed:.0f} tokens/s")
            for name, work in _idle(plan.idle_s).items():
                results.idle[name].append(work)
    return results


def _warm_up(plan: Plan, systems: list[System], prompts: Prompts, say: Callable[[str], None]) -> None:
    """Every path that is measured once, and the proof that the prompts' KV blocks are handed over."""
    for system in systems:
        for streams in plan.streams:
            _run(system, Load(prompts.take(streams), streams, 8, system.port))
        if system.pulled_tokens() == 0:
            raise RuntimeError(f"{system.name}: the decode engine takes no KV blocks from the prefill engine")
        say(f"{system.name} is warm")


def _run(system: System, load: Load) -> Run:
    system.driver.prepare(load)
    before, busy_s, started_at = census.read(), _busy_without_us_s(), time.monotonic()
    load_s = system.driver.run()
    time.sleep(SETTLE_S)
    busy_s, wall_s = _busy_without_us_s() - busy_s, time.monotonic() - started_at
    used_s = census.used_s(before, census.read())
    traces = system.driver.collect()
    if any(trace.tokens != load.max_tokens for trace in traces):
        raise RuntimeError(f"{system.name}: {sorted({t.tokens for t in traces})} tokens instead of {load.max_tokens}")
    engine_cpu_s = used_s[system.name].pop(census.ENGINE, 0.0)
    return Run(
        Work(wall_s, len(traces), sum(trace.tokens for trace in traces), used_s[system.name]),
        load_s,
        engine_cpu_s,
        sum(used_s[LOAD_GENERATOR].values()),
        busy_s - engine_cpu_s - sum(sum(roles.values()) for roles in used_s.values()),
        traces,
    )


def _idle(seconds: float) -> dict[str, Work]:
    """All systems at once, without load."""
    time.sleep(CALM_S)
    before, started_at = census.read(), time.monotonic()
    time.sleep(seconds)
    used_s, wall_s = census.used_s(before, census.read()), time.monotonic() - started_at
    for roles in used_s.values():
        roles.pop(census.ENGINE, None)
    return {name: Work(wall_s, 0, 0, roles) for name, roles in used_s.items()}


def _busy_without_us_s() -> float:
    return census.machine_busy_s() - time.process_time()
