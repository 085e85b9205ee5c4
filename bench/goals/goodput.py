"""The goals of bench/goodput.py: in no cell is our policy worse than it was, by more than noise. And the aims, which
are higher, and which no run has to reach. Pure.
"""

from collections.abc import Mapping
from typing import NamedTuple

from bench.goals.verdict import below
from bench.matrix.report import Matrix, Measure, Row, gain, in_requests, in_tokens

NUM_SEEDS = 3
"""Seeds of the runs on record."""


class Noise(NamedTuple):
    """Share of a gain by which a run may be below the gain that is on record."""

    all_seeds: float
    """For a run with NUM_SEEDS. It repeats exactly for the same code, but a change that moves single decisions moves a
    rate by 2 or 3 %.
    """
    fewer: float
    """For a run with fewer seeds, whose arrivals are others."""

    def of(self, num_seeds: int) -> float:
        return self.all_seeds if num_seeds >= NUM_SEEDS else self.fewer


NOISE = Noise(0.05, 0.1)
"""Of gains over rules on engines of others. Higher lets a policy lose what it had; lower fails for chance."""
NOISE_ON_OUR_ENGINES = Noise(0.03, 0.05)
"""The same for rules on our engines. There the same requests are late for all rules, so that runs differ less."""


class Record(NamedTuple):
    """Ratios that docs/benchmarks.md has."""

    requests: float
    """Our rate relative to that of the best rival on engines of others."""
    tokens: float
    """Our tokens within SLO, likewise."""
    on_our_engines: float
    """Our rate relative to that of the best other rule on our engines: what our choice of workers is worth."""


COMPARED = (
    "kv_cost_filter",
    "lmetric_filter",
    "min_ttft_filter",
    "lmetric_filter_priority",
    "min_ttft_filter_priority",
    "lmetric_filter_steps",
    "min_ttft_filter_steps",
)
"""The rivals that a run must have for its ratios to be compared with those on record: the best rules with our admission
on engines of others, and on ours. With fewer rivals, ours would be ahead of the best of them by more.
"""
AIMS: Mapping[str, float] = {"tight": 1.3, "mid": 1.1}
"""Least ratio to the best of all rivals, whatever engines they run on, by the objectives of a cell."""
AIM_ELSEWHERE = 0.99
"""The same for the other objectives: a policy that may do all that another may do never loses to it."""


RECORDED: Mapping[str, Record] = {
    "conversation/tight": Record(1.10, 1.08, 1.04),
    "documents/tight": Record(1.46, 1.39, 1.16),
    "azure-conv/tight": Record(1.02, 1.02, 1.00),
    "code-bursts/tight": Record(1.02, 1.04, 1.01),
    "arxiv/tight": Record(1.02, 1.02, 1.00),
    "conversation/mid": Record(1.14, 1.13, 1.06),
    "documents/mid": Record(1.34, 1.35, 1.16),
    "azure-conv/mid": Record(1.03, 1.04, 1.00),
    "code-bursts/mid": Record(0.99, 1.01, 1.00),
    "arxiv/mid": Record(1.02, 1.02, 1.00),
    "conversation/chat": Record(1.00, 0.98, 1.02),
    "azure-conv/chat": Record(1.00, 0.90, 1.00),
    "arxiv/chat": Record(0.98, 0.97, 1.01),
}


def aims(matrix: Matrix) -> list[Row]:
    """Which cells reach their aim, in requests and in tokens."""
    rows: list[Row] = [("aim", "at least", "requests", "tokens", "is reached")]
    for cell in matrix.cells:
        aim = AIMS.get(cell.partition("/")[2], AIM_ELSEWHERE)
        ratios = [_least_gain(matrix, cell, measure) for measure in (in_requests, in_tokens)]
        shown = [f"{ratio:.3f}" if ratio is not None else "-" for ratio in ratios]
        is_reached = all(ratio is not None and ratio >= aim for ratio in ratios)
        rows.append((cell, f"{aim:g}", *shown, "yes" if is_reached else "no"))
    return rows


def _least_gain(matrix: Matrix, cell: str, measure: Measure) -> float | None:
    gains = [gain(matrix, cell, measure, on_our_engines=on_our_engines) for on_our_engines in (False, True)]
    return min((gained.mean for gained in gains if gained), default=None)


def missed(matrix: Matrix) -> list[str]:
    """Cells that are not on record have no goal. A run that compares nothing on record misses its goal."""
    found, num_compared = list[str](), 0
    for cell in matrix.cells:
        if cell not in RECORDED:
            continue
        on_record = RECORDED[cell]
        for kind, gained, recorded, noise in (
            ("requests", gain(matrix, cell, in_requests), on_record.requests, NOISE),
            ("tokens", gain(matrix, cell, in_tokens), on_record.tokens, NOISE),
            (
                "requests",
                gain(matrix, cell, in_requests, on_our_engines=True),
                on_record.on_our_engines,
                NOISE_ON_OUR_ENGINES,
            ),
        ):
            if gained is not None:
                num_compared += 1
                least = (1.0 - noise.of(len(gained.by_seed))) * recorded
                found += below(f"{cell}, {kind} relative to {gained.rival}", gained.mean, least)
    return found if num_compared else ["no cell that is on record was compared with another policy"]
