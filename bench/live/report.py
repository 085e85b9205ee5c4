"""Tables for people and for docs/, and JSON, from the same runs."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from bench.fronts.cost import percentile
from bench.live.contenders import FIXED, OURS, ROUTED
from bench.live.goodput import Answer, Interval, PredictionError, difference, interval, prediction_error
from bench.live.rounds import Plan, Results, Run
from bench.matrix.report import markdown
from cluster.simulation.results.summary import aligned

STRANGERS_TOLERANCE = 0.1
"""Share of a core that other processes may take before a round counts as disturbed. Higher hides disturbances."""
_HEAD = ("mix", "system", "attained", "95 %", "good/s", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms", "refused", "lost")
_KINDS = ("chat", "long")

Rows = list[tuple[str, ...]]


@dataclass(frozen=True)
class Cell:
    """One mix on one system."""

    attainment: Interval
    goodput_per_s: float
    by_kind: dict[str, float]
    """Attainment."""
    answers: list[Answer]
    paths: dict[str, int]
    ttft_error: PredictionError | None
    tpot_error: PredictionError | None
    strangers_share: float


@dataclass(frozen=True)
class Verdict:
    """One system against another, over the same requests."""

    mix: str
    other: str
    difference: Interval
    """Its attainment less that of the other, in shares of all requests."""

    @property
    def word(self) -> str:
        if self.difference.low > 0:
            return "better"
        return "worse" if self.difference.high < 0 else "no difference that shows"


class Report:
    def __init__(self, plan: Plan, results: Results) -> None:
        self._plan, self._results = plan, results
        self._rng = random.Random(plan.seed)
        self.cells = {place: self._cell(place[0], runs) for place, runs in results.runs.items()}
        self.verdicts = [verdict for mix in plan.mixes if (verdict := self._verdict(mix))]
        """Ours against the best other system of each mix."""
        self.of_fixed = [self._against(mix, FIXED, ROUTED) for mix in plan.mixes if self._has(mix, FIXED, ROUTED)]
        """Of two systems that hand every request over, our fixed path against vllm-router."""

    def _cell(self, mix: str, runs: Sequence[Run]) -> Cell:
        answers = [answer for run in runs for answer in run.answers]
        fates = [fate for run in runs for fate in run.fates if fate]
        attainment = interval(self._good(runs), self._rng)
        placed = [fate for fate in fates if fate.predicted and fate.attempts == 1]
        ttfts = [(fate.predicted[0], fate.actual[0]) for fate in placed if fate.predicted and fate.actual[0]]
        tpots = [(fate.predicted[1], fate.actual[1]) for fate in placed if fate.predicted and fate.actual[1]]
        return Cell(
            attainment=attainment,
            goodput_per_s=sum(map(sum, self._good(runs))) / (len(runs) * self._plan.round_s),
            by_kind={
                kind: fmean(answer.is_good(self._results.slos) for answer in answers if answer.kind == kind)
                for kind in _KINDS
                if any(answer.kind == kind for answer in answers)
            },
            answers=answers,
            paths=dict(Counter(fate.path for fate in fates)),
            ttft_error=prediction_error(ttfts),
            tpot_error=prediction_error(tpots),
            strangers_share=fmean(run.strangers_share for run in runs),
        )

    def _good(self, runs: Sequence[Run]) -> list[list[float]]:
        return [[float(answer.is_good(self._results.slos)) for answer in run.answers] for run in runs]

    def _verdict(self, mix: str) -> Verdict | None:
        others = {name: cell for (of, name), cell in self.cells.items() if of == mix and name != OURS}
        if not others or (mix, OURS) not in self.cells:
            return None
        return self._against(mix, OURS, max(others, key=lambda name: others[name].attainment.value))

    def _against(self, mix: str, system: str, other: str) -> Verdict:
        runs = self._results.runs
        return Verdict(mix, other, difference(self._good(runs[mix, system]), self._good(runs[mix, other]), self._rng))

    def _has(self, mix: str, *systems: str) -> bool:
        return all((mix, system) in self.cells for system in systems)

    def text(self) -> str:
        blocks = [self._promises(), aligned(self._rows()), aligned(self._kind_rows())]
        blocks += [self._verdict_lines(), aligned(self._error_rows()), self._warnings()]
        return "\n\n".join(block for block in blocks if block)

    def markdown(self) -> str:
        tables = [self._rows(), self._kind_rows(), self._error_rows()]
        return "\n".join([self._promises() + "\n", *map(markdown, tables), self._verdict_lines()])

    def _promises(self) -> str:
        promises = [
            f"{kind}: TTFT {1e3 * slo.ttft_s:.0f} ms, TPOT {1e3 * slo.tpot_s:.1f} ms"
            for kind, slo in self._results.slos.items()
        ]
        return "SLO of a " + "; of a ".join(promises)

    def _rows(self) -> Rows:
        rows: Rows = [_HEAD]
        for (mix, system), cell in self._ordered():
            ttfts = [answer.ttft_s for answer in cell.answers if answer.ttft_s is not None]
            tpots = [answer.tpot_s for answer in cell.answers if answer.tpot_s is not None]
            refused = sum(answer.is_refused for answer in cell.answers)
            lost = sum(answer.ttft_s is None for answer in cell.answers) - refused
            between = f"{100 * cell.attainment.low:.0f}-{100 * cell.attainment.high:.0f}"
            shares = (f"{100 * cell.attainment.value:.1f} %", between, f"{cell.goodput_per_s:.2f}")
            times = (*_milliseconds(ttfts, 0), *_milliseconds(tpots, 1))
            rate = f"{mix}, {self._results.per_s[mix]:.2f}/s"
            rows.append((rate, system, *shares, *times, str(refused), str(lost)))
        return rows

    def _kind_rows(self) -> Rows:
        rows: Rows = [("mix", "system", "of chats", "of long", "P->D", "D", "P")]
        for (mix, system), cell in self._ordered():
            kinds = [f"{100 * cell.by_kind[kind]:.1f} %" if kind in cell.by_kind else "-" for kind in _KINDS]
            paths = [str(cell.paths.get(path, 0)) if cell.paths else "-" for path in ("P->D", "D", "P")]
            rows.append((mix, system, *kinds, *paths))
        return rows

    def _error_rows(self) -> Rows:
        rows: Rows = [("mix", "prediction of", "requests", "off p50", "p90", "predicted / actual")]
        for (mix, system), cell in self._ordered():
            for name, error in (("TTFT", cell.ttft_error), ("TPOT", cell.tpot_error)):
                if system == OURS and error:
                    off = (f"{100 * error.p50:.0f} %", f"{100 * error.p90:.0f} %", f"{error.bias:.2f}")
                    rows.append((mix, name, str(error.count), *off))
        return rows

    def _verdict_lines(self) -> str:
        lines = [_line(verdict, f"over {verdict.other}, the best other") for verdict in self.verdicts]
        lines += [_line(verdict, f"of {FIXED} over {verdict.other}") for verdict in self.of_fixed]
        return "\n".join(lines)

    def _warnings(self) -> str:
        """What speaks against the figures."""
        lines = [
            f"  {mix}, {system}: other processes took {100 * cell.strangers_share:.0f} % of a core"
            for (mix, system), cell in self._ordered()
            if cell.strangers_share > STRANGERS_TOLERANCE
        ]
        return "\n".join(["Disturbed", *lines]) if lines else ""

    def to_json(self, machine: str) -> dict[str, Any]:
        return {
            "machine": machine,
            "plan": asdict(self._plan),
            "slos": {kind: asdict(slo) for kind, slo in self._results.slos.items()},
            "offered_per_s": self._results.per_s,
            "cells": [
                {"mix": mix, "system": system, **{k: v for k, v in asdict(cell).items() if k != "answers"}}
                for (mix, system), cell in self._ordered()
            ],
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "of_fixed": [asdict(verdict) for verdict in self.of_fixed],
            "runs": [
                {"mix": mix, "system": system, "runs": [asdict(run) for run in runs]}
                for (mix, system), runs in self._results.runs.items()
            ],
        }

    def _ordered(self) -> list[tuple[tuple[str, str], Cell]]:
        """Runs sorted by mix, because the rounds of all mixes alternate."""
        return sorted(self.cells.items(), key=lambda item: self._plan.mixes.index(item[0][0]))


def _line(verdict: Verdict, against: str) -> str:
    gain = verdict.difference
    points = f"{100 * gain.value:+.1f} points of attainment {against} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
    return f"{verdict.mix}: {verdict.word}: {points}"


def _milliseconds(values: Sequence[float], digits: int) -> tuple[str, str]:
    """Median and 99th percentile."""
    if not values:
        return ("-", "-")
    p50, p99 = (f"{1e3 * percentile(values, p):.{digits}f}" for p in (50, 99))
    return p50, p99
