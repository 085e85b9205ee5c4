"""Tables of the matrix, for a terminal and for docs/."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

from scipy.stats import t as student

from bench.matrix.search import OURS, Result
from cluster.simulation.baselines import BASELINES
from cluster.simulation.results.summary import RunSummary, aligned

LEAST_RATIO = 0.99
"""Least ratio of our rate, and of our tokens within SLO per second, to those of the best rival. Higher fails for noise;
lower accepts cells in which a simpler policy is better.
"""
GAINS = {"tight": 1.3, "mid": 1.1}
"""Ratio of our rate to that of the best rival that is wanted at an SLO. Higher fails sooner; lower accepts less."""

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

    def setting(self, cell: str, policy: str) -> str:
        """The best split and the best step tokens of each seed, where the policy has such a setting."""
        found = [result for result in self._by_place[cell, policy] if result.rate]
        steps = "/".join(str(number) for number in sorted({result.step_tokens for result in found}))
        if BASELINES[policy].has_step_policy:
            steps = ""
        if not BASELINES[policy].has_prefill_pool:
            return steps
        return ("/".join(sorted({f"{result.num_prefill}P" for result in found})) + f" {steps}").strip()

    def rivals(self, cell: str) -> dict[str, float]:
        """Rates of the policies of others. Our policy without a part of it is no rival."""
        rates = {policy: self.rate(cell, policy) for policy in self.policies if not policy.startswith(OURS)}
        return {policy: rate for policy, rate in rates.items() if rate is not None}

    def best_rival(self, cell: str) -> str | None:
        rates = self.rivals(cell)
        return max(rates, key=rates.__getitem__) if rates else None

    def by_seed(self, cell: str, policy: str) -> dict[int, float]:
        """The highest rate, in requests per second."""
        return {result.seed: result.rate for result in self._by_place.get((cell, policy), [])}

    def tokens(self, cell: str, policy: str) -> float | None:
        """Tokens within SLO at the highest rate, per second, as a multiple of the mean tokens of a request."""
        results = self._by_place.get((cell, policy))
        if not results:
            return None
        return fmean(r.rate * r.summary.token_attainment if r.summary else 0.0 for r in results)

    def summaries(self, cell: str, policy: str) -> list[RunSummary]:
        """Figures at the highest rate, of each seed that has one."""
        return [result.summary for result in self._by_place.get((cell, policy), []) if result.summary]

    def shown(self, cell: str, policy: str) -> str:
        """The rate with the interval of its mean over the seeds, and the best setting."""
        rate = self.rate(cell, policy)
        if rate is None:
            return "-"
        rates = [*self.by_seed(cell, policy).values()]
        return f"{rate:.3g}{spread(rates)} {self.setting(cell, policy)}".strip()


def spread(values: Sequence[float]) -> str:
    """Half of the 95 % interval of the mean (Student's t), relative to the mean; nothing for a single value."""
    if len(values) < 2 or not max(values):
        return ""
    half = student.ppf(0.975, len(values) - 1) * stdev(values) / sqrt(len(values))
    return f"±{100 * half / fmean(values):.0f}%"


def heading(matrix: Matrix) -> Row:
    ours = ("best rival", f"{OURS} / best", "in tokens") if OURS in matrix.policies else ()
    return ("highest rate, req/s", *matrix.policies, *ours)


def row(matrix: Matrix, cell: str) -> Row:
    cells = [cell, *(matrix.shown(cell, policy) for policy in matrix.policies)]
    if OURS in matrix.policies:
        of_seeds, in_tokens = gains(matrix, cell), token_ratio(matrix, cell)
        ratio = f"{fmean(of_seeds):.3f}{spread(of_seeds)}" if of_seeds else "-"
        cells += [matrix.best_rival(cell) or "-", ratio, "-" if in_tokens is None else f"{in_tokens:.3f}"]
    return tuple(cells)


def gains(matrix: Matrix, cell: str) -> list[float]:
    """Our rate relative to the best rival's, by seed. A seed has the same arrivals for all policies."""
    best = matrix.best_rival(cell)
    if best is None:
        return []
    theirs = matrix.by_seed(cell, best)
    return [rate / theirs[seed] for seed, rate in matrix.by_seed(cell, OURS).items() if theirs.get(seed)]


def token_ratio(matrix: Matrix, cell: str) -> float | None:
    """Our tokens within SLO per second relative to the most of any rival."""
    ours = matrix.tokens(cell, OURS)
    most = max([matrix.tokens(cell, rival) or 0.0 for rival in matrix.rivals(cell)], default=0.0)
    return ours / most if ours is not None and most else None


def details(matrix: Matrix) -> list[Row]:
    """Who is served at the highest rate of each policy: shares of tokens, of refused requests, and by prompt length."""
    rows: list[Row] = [
        ("cell", "policy", "tokens in SLO", "refused", "shortest quarter", "2nd", "3rd", "longest", "longest tenth")
    ]
    for cell in matrix.cells:
        for policy in matrix.policies:
            found = matrix.summaries(cell, policy)
            if found:
                shares = [
                    fmean(summary.token_attainment for summary in found),
                    1.0 - fmean(summary.accepted for summary in found),
                    *(fmean(summary.by_prompt_length[quarter] for summary in found) for quarter in range(4)),
                    fmean(summary.longest_tenth for summary in found),
                ]
                rows.append((cell, policy, *(f"{100 * share:.0f} %" for share in shares)))
    return rows


def table(matrix: Matrix) -> str:
    return aligned([heading(matrix), *(row(matrix, cell) for cell in matrix.cells)])


def markdown(rows: Sequence[Row]) -> str:
    head, *body = rows
    rule = ("---", *("---:" for _ in head[1:]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *body)) + "\n"


def verdicts(matrix: Matrix) -> list[str]:
    """Where our policy is below what is wanted. Empty if it is so nowhere."""
    failures = []
    for cell in matrix.cells:
        best, of_seeds, in_tokens = matrix.best_rival(cell), gains(matrix, cell), token_ratio(matrix, cell)
        if best is None or not of_seeds:
            continue
        ratio, wanted = fmean(of_seeds), GAINS.get(cell.partition("/")[2], LEAST_RATIO)
        if ratio < wanted:
            failures.append(f"{cell}: {ratio:.3f} of {best}, {wanted} is wanted")
        if in_tokens is not None and in_tokens < LEAST_RATIO:
            failures.append(f"{cell}: {in_tokens:.3f} of the most tokens of a rival, {LEAST_RATIO} is wanted")
    return failures
