"""Agents beside chats on real engines: the load, what came of each request, and the tables. Pure."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

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
    tpot_s: float
    num_prompt: int
    num_hits: int
    """Tokens of the prompt that were found in caches, as the usage of the answer says."""


Runs = Sequence[Sequence[Asked]]
"""By round, in an order that is the same for every system."""
HEADING = (
    *("system", "next steps", "hits", "TTFT p50", "p95", "mean", "TPOT p50", "p95 ms"),
    *("chats", "TTFT p50", "p95", "TPOT p50", "p95 ms"),
)
DIFFERENCES = ("system", "hits, points", "TTFT of next steps, ms", "TPOT, ms", "TTFT of chats, ms")


def next_steps(run: Sequence[Asked]) -> list[Asked]:
    return [each for each in run if each.is_agent and each.step]


def chats(run: Sequence[Asked]) -> list[Asked]:
    return [each for each in run if not each.is_agent]


def row(name: str, runs: Runs) -> tuple[str, ...]:
    steps, others = ([each for run in runs for each in which(run)] for which in (next_steps, chats))
    hits = sum(each.num_hits for each in steps) / max(1, sum(each.num_prompt for each in steps))
    return (
        name,
        f"{len(steps)}",
        f"{100 * hits:.1f} %",
        *_middle_and_tail([_ttft_ms(each) for each in steps]),
        f"{fmean([_ttft_ms(each) for each in steps] or [0.0]):.0f}",
        *_middle_and_tail([_tpot_ms(each) for each in steps]),
        f"{len(others)}",
        *_middle_and_tail([_ttft_ms(each) for each in others]),
        *_middle_and_tail([_tpot_ms(each) for each in others]),
    )


def differences(runs: Mapping[str, Runs]) -> list[tuple[str, ...]]:
    """What each system has less than each one before it, request by request, with 95 % intervals by bootstrap."""
    return [
        (f"{ours} less {theirs}", *(_told(compared(runs[ours], runs[theirs], *each)) for each in _COMPARED))
        for theirs, ours in combinations(runs, 2)
    ]


def compared(
    ours: Runs, theirs: Runs, which: Callable[[Sequence[Asked]], list[Asked]], value: Callable[[Asked], float]
) -> Interval:
    """Mean difference of a value over requests that both were asked.

    Raises:
        ValueError: they were not asked the same number of requests.
    """
    our_values, their_values = ([[value(each) for each in which(run)] for run in runs] for runs in (ours, theirs))
    return difference(our_values, their_values, random.Random(0))


def _middle_and_tail(values: Sequence[float]) -> list[str]:
    """The median and the 95th percentile."""
    return [f"{quantile(sorted(values) or [0.0], p):.0f}" for p in (0.5, 0.95)]


def _hits(asked: Asked) -> float:
    return 100 * asked.num_hits / asked.num_prompt


def _ttft_ms(asked: Asked) -> float:
    return 1e3 * asked.ttft_s


def _tpot_ms(asked: Asked) -> float:
    return 1e3 * asked.tpot_s


_COMPARED = ((next_steps, _hits), (next_steps, _ttft_ms), (next_steps, _tpot_ms), (chats, _ttft_ms))


def _told(interval: Interval) -> str:
    return f"{interval.value:+.1f} ({interval.low:+.1f} to {interval.high:+.1f})"
