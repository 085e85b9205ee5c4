"""The goals of bench/goodput.py: in no cell is our policy worse than it was, by more than noise. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from bench.goals.verdict import below
from bench.matrix.report import Matrix, gain, in_requests, in_tokens

NOISE = 0.1
"""Share of a gain over rules on engines of others by which a run may be below the gain that is on record. A run of
another seed or of fewer requests differs by some per cent. Higher lets a policy lose what it had; lower fails for
chance.
"""
NOISE_ON_OUR_ENGINES = 0.05
"""The same for rules on our engines. There the same requests are late for all rules, so that runs differ less."""


class Record(NamedTuple):
    """Ratios that docs/benchmarks.md has."""

    requests: float
    """Our rate relative to that of the best rival on engines of others."""
    tokens: float
    """Our tokens within SLO, likewise."""
    on_our_engines: float
    """Our rate relative to that of the best other rule on our engines: what our choice of workers is worth."""


RECORDED: Mapping[str, Record] = {
    "conversation/tight": Record(1.05, 1.01, 0.98),
    "documents/tight": Record(1.59, 1.43, 1.07),
    "azure-conv/tight": Record(1.03, 1.03, 1.00),
    "code-bursts/tight": Record(1.02, 1.04, 1.01),
    "arxiv/tight": Record(1.02, 1.02, 1.00),
    "conversation/mid": Record(1.19, 1.10, 1.04),
    "documents/mid": Record(1.53, 1.35, 1.09),
    "azure-conv/mid": Record(1.05, 1.05, 0.99),
    "code-bursts/mid": Record(1.00, 1.02, 1.02),
    "arxiv/mid": Record(1.02, 1.02, 1.00),
    "conversation/chat": Record(0.86, 0.86, 1.02),
    "azure-conv/chat": Record(0.93, 0.87, 1.01),
    "arxiv/chat": Record(0.88, 0.88, 1.01),
}


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
                found += below(f"{cell}, {kind} relative to {gained.rival}", gained.mean, (1.0 - noise) * recorded)
    return found if num_compared else ["no cell that is on record was compared with another policy"]
