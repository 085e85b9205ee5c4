"""The goals of bench/goodput.py: in no cell is our policy worse than it was, by more than noise. Pure."""

from collections.abc import Mapping

from bench.goals.verdict import below
from bench.matrix.report import Gain, Matrix, gain, in_requests, in_tokens

NOISE = 0.1
"""Share of a gain by which a run may be below the gain that is on record. A run of another seed or of fewer requests
differs by some per cent. Higher lets a policy lose what it had; lower fails for chance.
"""
RECORDED: Mapping[str, tuple[float, float]] = {
    "conversation/tight": (0.98, 0.94),
    "documents/tight": (1.40, 1.31),
    "azure-conv/tight": (1.01, 1.01),
    "code-bursts/tight": (0.97, 0.95),
    "arxiv/tight": (1.00, 1.00),
    "conversation/mid": (1.14, 1.09),
    "documents/mid": (1.33, 1.29),
    "azure-conv/mid": (1.01, 1.01),
    "code-bursts/mid": (1.03, 1.03),
    "arxiv/mid": (1.00, 1.00),
}
"""By cell: our rate, and our tokens within SLO, relative to those of the best rival, as docs/benchmarks.md has them."""


def missed(matrix: Matrix) -> list[str]:
    """Cells that are not on record have no goal."""
    found = []
    for cell in matrix.cells:
        if cell in RECORDED:
            requests, tokens = RECORDED[cell]
            found += _lost("requests", gain(matrix, cell, in_requests), requests, cell)
            found += _lost("tokens", gain(matrix, cell, in_tokens), tokens, cell)
    return found


def _lost(kind: str, gained: Gain | None, recorded: float, cell: str) -> list[str]:
    if gained is None:
        return []
    return below(f"{cell}, {kind} relative to {gained.rival}", gained.mean, (1.0 - NOISE) * recorded)
