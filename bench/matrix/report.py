"""Tables of the matrix, for a terminal and for docs/."""

from collections.abc import Sequence
from statistics import fmean

from bench.matrix.search import Result
from cluster.simulation.baselines import BASELINES
from cluster.simulation.results.summary import aligned

OURS, REFERENCE = "goodput", "round_robin"
MOST_BELOW = 0.02
"""Share by which our rate may be below that of the best static policy. Higher accepts worse results."""
GAIN, GAIN_CELLS = 1.15, ("conversation/tight", "conversation/mid")
NUM_WORKERS = 8

Row = tuple[str, ...]


class Matrix:
    """Results by cell and policy; the mean over seeds."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._by_place: dict[tuple[str, str], list[Result]] = {}
        for result in results:
            self._by_place.setdefault((result.cell, result.policy), []).append(result)
        self.cells = list(dict.fromkeys(result.cell for result in results))
        self.policies = [name for name in BASELINES if any(result.policy == name for result in results)]

    def rate(self, cell: str, policy: str) -> float | None:
        """Requests per second; None: not measured."""
        results = self._by_place.get((cell, policy))
        return fmean(result.rate for result in results) if results else None

    def split(self, cell: str, policy: str) -> str:
        """The best one of each seed, or nothing for a policy without splits."""
        if not BASELINES[policy].has_prefill_pool:
            return ""
        return "/".join(sorted({f"{r.num_prefill}P" for r in self._by_place[cell, policy] if r.rate}))

    def best_static(self, cell: str) -> tuple[str, float] | None:
        rates = {policy: self.rate(cell, policy) for policy in self.policies if policy != OURS}
        known = {policy: rate for policy, rate in rates.items() if rate is not None}
        return max(known.items(), key=lambda item: item[1]) if known else None

    def spread(self, cell: str, policy: str) -> str:
        """Half of the range over seeds, relative to the mean; nothing for a single seed."""
        rates = [result.rate for result in self._by_place[cell, policy]]
        return f"±{50 * (max(rates) - min(rates)) / fmean(rates):.0f}%" if len(rates) > 1 and max(rates) else ""


def heading(matrix: Matrix) -> Row:
    ours = ("best static", f"{OURS} / best") if OURS in matrix.policies else ()
    return ("cell", f"{REFERENCE} req/s", *(p for p in matrix.policies if p != REFERENCE), *ours)


def row(matrix: Matrix, cell: str) -> Row:
    """Rates relative to the reference's, with the best split."""
    reference = matrix.rate(cell, REFERENCE)
    cells = [cell, f"{reference:.2f}" if reference else "-"]
    for policy in matrix.policies:
        if policy != REFERENCE:
            rate = matrix.rate(cell, policy)
            relative = f"{rate / reference:.2f}" if rate is not None and reference else _absolute(rate)
            notes = f"{matrix.spread(cell, policy)} {matrix.split(cell, policy)}".split() if rate is not None else ()
            cells.append(" ".join([relative, *notes]))
    if OURS in matrix.policies:
        best, ours = matrix.best_static(cell), matrix.rate(cell, OURS)
        relative = f"{ours / best[1]:.3f}" if best is not None and best[1] and ours is not None else "-"
        cells += [best[0] if best else "-", relative]
    return tuple(cells)


def table(matrix: Matrix) -> str:
    return aligned([heading(matrix), *(row(matrix, cell) for cell in matrix.cells)])


def markdown(rows: Sequence[Row]) -> str:
    head, *body = rows
    rule = ("---", *("---:" for _ in head[1:]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *body)) + "\n"


def verdicts(matrix: Matrix) -> list[str]:
    """Where our policy is below what it promises; empty: nowhere."""
    failures = []
    for cell in matrix.cells:
        best, ours = matrix.best_static(cell), matrix.rate(cell, OURS)
        if best is None or ours is None or not best[1]:
            continue
        ratio = ours / best[1]
        if ratio < 1 - MOST_BELOW:
            failures.append(f"{cell}: {ratio:.3f} of {best[0]}, which is more than {100 * MOST_BELOW:g} % below it")
        elif cell.replace(" held-out", "") in GAIN_CELLS and ratio < GAIN:
            failures.append(f"{cell}: {ratio:.3f} of {best[0]}, {GAIN} is wanted")
    return failures


def _absolute(rate: float | None) -> str:
    return "-" if rate is None else f"({rate:.2f}/s)"
