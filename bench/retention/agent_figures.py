"""Agents beside chats on real engines: the load, what came of each request, and the tables. Pure."""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from bench.fronts.census import Reading
from bench.live.goodput import Interval, difference
from cluster.simulation.results.summary import quantile


@dataclass(frozen=True)
class AgentLoad:
    """Words are numbers of four digits, each of which takes several tokens."""

    ports: tuple[int, ...]
    """Ports of the system's servers on this machine."""
    is_sticky: bool
    """Whether a conversation stays with its server, where there are several."""
    tasks_per_s: float
    chats_per_s: float
    duration_s: float
    """Tasks and chats begin within it. All come to their end."""
    gap_s: float | None
    """Mean time of a tool. None draws it from what is published, up to `most_gap_s`."""
    most_gap_s: float
    num_steps: int
    instruction_words: int
    question_words: int
    result_words: int
    """What a tool adds to the prompt of the next step."""
    chat_words: int
    chat_output_tokens: int
    seed: int


@dataclass(frozen=True)
class Asked:
    """One request and what came."""

    is_agent: bool
    step: int
    """0 for the first request of a task, and for chats."""
    ttft_s: float
    """From when it was first sent, with the waits after refusals."""
    tpot_s: float
    num_prompt: int
    num_hits: int
    """Tokens of the prompt that were found in caches, as the usage of the answer says."""
    num_tries: int = 1


@dataclass(frozen=True)
class Objective:
    """What a request is to meet, whether or not the system knows of it."""

    ttft_s: float
    ttft_per_token_s: float
    """Added for each token of the prompt."""
    tpot_s: float

    def is_met(self, asked: Asked) -> bool:
        return asked.ttft_s <= self.ttft_s + self.ttft_per_token_s * asked.num_prompt and asked.tpot_s <= self.tpot_s


Runs = Sequence[Sequence[Asked]]
"""By round, in an order that is the same for every system."""
HEADING = ("system", "requests", "hits", "TTFT p50", "p95", "mean", "TPOT p50", "p95 ms", "good", "refusals")
TASKS = ("system", "tasks", "waits for first tokens p50", "p95", "mean s", "all steps good", "with a refusal")
LEAST_CORES = 0.01
"""Cores that a process must use to be told of."""
DIFFERENCES = ("systems", "requests", "hits, points", "TTFT, ms", "TPOT, ms")
KINDS: dict[str, Callable[[Asked], bool]] = {
    "first steps": lambda asked: asked.is_agent and asked.step == 0,
    "next steps": lambda asked: asked.is_agent and asked.step > 0,
    "chats": lambda asked: not asked.is_agent,
}


def rows(name: str, runs: Runs, objective: Objective) -> list[tuple[str, ...]]:
    """One for each kind of request."""
    return [_row(name, kind, [each for run in runs for each in run if KINDS[kind](each)], objective) for kind in KINDS]


def _row(name: str, kind: str, asked: Sequence[Asked], objective: Objective) -> tuple[str, ...]:
    ttfts_ms, tpots_ms = (sorted(map(value, asked)) or [0.0] for value in (_ttft_ms, _tpot_ms))
    return (
        name,
        f"{len(asked)} {kind}",
        f"{100 * sum(each.num_hits for each in asked) / max(1, sum(each.num_prompt for each in asked)):.1f} %",
        *(f"{quantile(ttfts_ms, p):.0f}" for p in (0.5, 0.95)),
        f"{fmean(ttfts_ms):.0f}",
        *(f"{quantile(tpots_ms, p):.0f}" for p in (0.5, 0.95)),
        f"{100 * sum(map(objective.is_met, asked)) / max(1, len(asked)):.1f} %",
        f"{sum(each.num_tries - 1 for each in asked)}",
    )


def tasks_row(name: str, runs: Runs, objective: Objective) -> tuple[str, ...]:
    """Of whole tasks: the TTFT of all steps of a task together, and what became of all of them."""
    tasks = [task for run in runs for task in _tasks(run)]
    waits_s = sorted(sum(step.ttft_s for step in task) for task in tasks) or [0.0]
    return (
        name,
        f"{len(tasks)}",
        *(f"{quantile(waits_s, p):.1f}" for p in (0.5, 0.95)),
        f"{fmean(waits_s):.1f}",
        f"{sum(all(map(objective.is_met, task)) for task in tasks)}",
        f"{sum(any(step.num_tries > 1 for step in task) for task in tasks)}",
    )


def _tasks(run: Sequence[Asked]) -> list[list[Asked]]:
    tasks: list[list[Asked]] = []
    for asked in run:
        if asked.is_agent:
            if asked.step == 0:
                tasks.append([])
            tasks[-1].append(asked)
    return tasks


def differences(runs: Mapping[str, Runs]) -> list[tuple[str, ...]]:
    """What each system has less than each one before it, request by request, with 95 % intervals by bootstrap over
    rounds and over the requests of each. Of one round, they say nothing of the differences between rounds.
    """
    return [
        (f"{ours} less {theirs}", kind, *(_told(compared(runs[ours], runs[theirs], kind, each)) for each in _COMPARED))
        for theirs, ours in combinations(runs, 2)
        for kind in KINDS
    ]


def compared(ours: Runs, theirs: Runs, kind: str, value: Callable[[Asked], float]) -> Interval:
    """Mean difference of a value over requests that both were asked.

    Raises:
        ValueError: they were not asked the same number of requests.
    """
    our_values, their_values = (
        [[value(each) for each in run if KINDS[kind](each)] for run in runs] for runs in (ours, theirs)
    )
    return difference(our_values, their_values, random.Random(0))


def cores(used: Reading, systems: Sequence[str], lasted_s: float) -> str:
    """The mean number of cores that each process of some systems has used, by role. `used`: CPU seconds."""
    by_role: dict[str, list[float]] = defaultdict(list)
    for process, seconds in used.items():
        if process.system in systems and seconds >= LEAST_CORES * lasted_s:
            by_role[process.role].append(seconds / lasted_s)
    told = sorted(by_role.items(), key=lambda pair: -sum(pair[1]))
    each_of = {role: " + ".join(f"{each:.2f}" for each in sorted(some, reverse=True)) for role, some in told}
    return ", ".join(f"{role} {each}" for role, each in each_of.items())


def _hits(asked: Asked) -> float:
    return 100 * asked.num_hits / asked.num_prompt


def _ttft_ms(asked: Asked) -> float:
    return 1e3 * asked.ttft_s


def _tpot_ms(asked: Asked) -> float:
    return 1e3 * asked.tpot_s


_COMPARED = (_hits, _ttft_ms, _tpot_ms)


def _told(interval: Interval) -> str:
    return f"{interval.value:+.1f} ({interval.low:+.1f} to {interval.high:+.1f})"
