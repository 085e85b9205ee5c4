"""The arithmetic: net of idle, a request's cost apart from a token's, percentiles. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """What a system did in a time, and what CPU time that took, by role."""

    wall_s: float
    requests: int
    tokens: int
    cpu_s: Mapping[str, float]


@dataclass(frozen=True)
class Cost:
    """What a front takes net of its idle CPU time, by role."""

    request_ms: Mapping[str, float]
    """CPU milliseconds of a request with its first token."""
    token_us: Mapping[str, float]
    """CPU microseconds of each further token."""


def total(works: Iterable[Work]) -> Work:
    works = list(works)
    cpu_s: Counter[str] = Counter()
    for work in works:
        cpu_s.update(work.cpu_s)
    return Work(
        sum(work.wall_s for work in works),
        sum(work.requests for work in works),
        sum(work.tokens for work in works),
        dict(cpu_s),
    )


def idle_ms_per_s(idle: Work) -> dict[str, float]:
    """CPU milliseconds per second without load, by role."""
    return {role: 1e3 * seconds / idle.wall_s for role, seconds in idle.cpu_s.items()}


def cost(short: Work, long: Work, idle: Work) -> Cost:
    """Solve for the two costs: `short` has requests of one token, `long` requests of many."""
    short_net, long_net = _net_s(short, idle), _net_s(long, idle)
    request_s = {role: seconds / short.requests for role, seconds in short_net.items()}
    further_tokens = long.tokens - long.requests
    token_s = {
        role: (seconds - long.requests * request_s.get(role, 0.0)) / further_tokens
        for role, seconds in long_net.items()
    }
    return Cost(
        {role: 1e3 * seconds for role, seconds in request_s.items()},
        {role: 1e6 * seconds for role, seconds in token_s.items()},
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the values that at least `percent` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _net_s(work: Work, idle: Work) -> dict[str, float]:
    return {
        role: seconds - work.wall_s * idle.cpu_s.get(role, 0.0) / idle.wall_s for role, seconds in work.cpu_s.items()
    }
