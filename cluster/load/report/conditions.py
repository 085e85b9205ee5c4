"""Conditions on the figures, such as `attainment>=0.95`, which decide the status of the command. Pure."""

import re
from collections.abc import Callable

import msgspec

from cluster.load.report.figures import Latency, LoadFigures
from cluster.load.report.text import num_failed, num_refused

_SPELT = re.compile(r"\s*(?P<name>[a-z0-9_]+)\s*(?P<sign>>=|<=|>|<|==)\s*(?P<bound>\d+(?:\.\d+)?(?:e-?\d+)?)\s*")
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda value, bound: value >= bound,
    "<=": lambda value, bound: value <= bound,
    ">": lambda value, bound: value > bound,
    "<": lambda value, bound: value < bound,
    "==": lambda value, bound: value == bound,
}
_QUANTILES = ("p50", "p90", "p95", "p99", "mean", "max")


def _of_latency(pick: Callable[[LoadFigures], Latency | None], field: str) -> Callable[[LoadFigures], float | None]:
    def value(run: LoadFigures) -> float | None:
        latency = pick(run)
        found = getattr(latency, field) if latency is not None else None
        return None if found is None else 1e3 * float(getattr(found, "value", found))

    return value


FIGURES: dict[str, Callable[[LoadFigures], float | None]] = {
    "attainment": lambda run: run.attainment.value,
    "attainment_low": lambda run: run.attainment.low,
    "goodput": lambda run: run.goodput_per_s.value,
    "finished_per_s": lambda run: run.finished_per_s,
    "output_tokens_per_s": lambda run: run.output_tokens_per_s,
    "refused": num_refused,
    "failed": num_failed,
    "refused_share": lambda run: num_refused(run) / max(1, run.num_requests),
    "failed_share": lambda run: num_failed(run) / max(1, run.num_requests),
    "cached_share": lambda run: run.cached_share,
    **{
        f"{name}_{field}_ms": _of_latency(pick, field)
        for name, pick in (
            ("ttft", lambda run: run.ttft_s),
            ("tpot", lambda run: run.tpot_s),
            ("e2e", lambda run: run.e2e_s),
        )
        for field in _QUANTILES
    },
}
"""Figures that a condition may name. Times are milliseconds."""


class Condition(msgspec.Struct, frozen=True):
    name: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.bound:g}"


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        ValueError: the text is no condition, or names no figure.
    """
    match = _SPELT.fullmatch(text)
    if match is None or match["name"] not in FIGURES:
        raise ValueError(
            f"{text!r} is no condition: give one such as attainment>=0.95, with one of {', '.join(FIGURES)}"
        )
    return Condition(match["name"], match["sign"], float(match["bound"]))


def unmet(conditions: list[Condition], run: LoadFigures) -> list[str]:
    """The conditions that the run does not meet, each with what it has. A figure that does not exist meets none."""
    lines = []
    for condition in conditions:
        value = FIGURES[condition.name](run)
        if value is None or not _SIGNS[condition.sign](value, condition.bound):
            lines.append(f"{condition} is not met: {'there is none' if value is None else f'it is {value:.4g}'}")
    return lines
