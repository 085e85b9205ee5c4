"""Tables of the matrix, for a terminal and for docs/."""

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import fmean, stdev

import msgspec
from scipy.stats import t as student

from bench.matrix.search import OURS, Result
from cluster.messages.ids import Path
from cluster.simulation.baselines import BASELINES
from cluster.simulation.results.summary import RunSummary

Row = tuple[str, ...]
EDGE = "*"

Measure = Callable[[Result], float]


def in_requests(result: Result) -> float:
    """The highest rate, in requests per second."""
    return result.rate


def in_tokens(result: Result) -> float:
    return result.tokens


class Matrix:
    """Results by cell and policy; the mean over seeds."""

    def __init__(self, results: Sequence[Result], offered_steps: Sequence[int] = ()) -> None:
        """`offered_steps`: the step tokens that policies could choose from. The smallest and the largest are marked
        with EDGE where they are the best: a still smaller or larger one might be better.
        """
        self._edges = {min(offered_steps), max(offered_steps)} if len(set(offered_steps)) > 1 else set[int]()
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
        chosen = sorted({result.step_tokens for result in found})
        steps = "/".join(f"{number}{EDGE if number in self._edges else ''}" for number in chosen)
        if not BASELINES[policy].has_step_size:
            steps = ""
        if not BASELINES[policy].has_prefill_pool:
            return steps
        return ("/".join(sorted({f"{result.num_prefill}P" for result in found})) + f" {steps}").strip()

    def rivals(self, cell: str, *, on_our_engines: bool = False) -> list[str]:
        """Policies of others, on engines of others or on ours. Our policy without a part of it is no rival."""
        names = [name for name in self.policies if not name.startswith(OURS) and (cell, name) in self._by_place]
        return [name for name in names if BASELINES[name].has_step_size != on_our_engines]

    def by_seed(self, cell: str, policy: str, measure: Measure) -> dict[int, float]:
        return {result.seed: measure(result) for result in self._by_place.get((cell, policy), [])}

    def summaries(self, cell: str, policy: str) -> list[RunSummary]:
        """Figures at the highest rate, of each seed that has one."""
        return [result.summary for result in self._by_place.get((cell, policy), []) if result.summary]

    def shown(self, cell: str, policy: str) -> str:
        """The rate with the interval of its mean over the seeds, and the best setting."""
        rate = self.rate(cell, policy)
        if rate is None:
            return "-"
        rates = [*self.by_seed(cell, policy, in_requests).values()]
        return f"{rate:.3g}{spread(rates)} {self.setting(cell, policy)}".strip()


def spread(values: Sequence[float]) -> str:
    """Half of the 95 % interval of the mean (Student's t), relative to the mean; nothing for a single value."""
    if len(values) < 2 or not max(values):
        return ""
    half = student.ppf(0.975, len(values) - 1) * stdev(values) / sqrt(len(values))
    return f"±{100 * half / fmean(values):.0f}%"


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Our figure relative to that of the best rival."""

    rival: str
    by_seed: list[float]
    """A seed has the same arrivals for all policies."""

    @property
    def mean(self) -> float:
        return fmean(self.by_seed)

    def __str__(self) -> str:
        return f"{self.mean:.3f}{spread(self.by_seed)}"


def gain(matrix: Matrix, cell: str, measure: Measure, *, on_our_engines: bool = False) -> Gain | None:
    """Relative to the rival with the best mean. None where we or all of the rivals have no figure."""
    ours = matrix.by_seed(cell, OURS, measure)
    rivals = {name: matrix.by_seed(cell, name, measure) for name in matrix.rivals(cell, on_our_engines=on_our_engines)}
    best = max(rivals, key=lambda name: fmean(rivals[name].values()), default=None)
    if best is None:
        return None
    ratios = [ours[seed] / theirs for seed, theirs in rivals[best].items() if theirs and seed in ours]
    return Gain(rival=best, by_seed=ratios) if ratios else None


def rates(matrix: Matrix) -> list[Row]:
    return [
        ("highest rate, req/s", *matrix.policies),
        *((cell, *(matrix.shown(cell, policy) for policy in matrix.policies)) for cell in matrix.cells),
    ]


def gains(matrix: Matrix) -> list[Row]:
    """Our rate, and our tokens within SLO per second, relative to those of the best rival, and of the best other rule
    on our engines.
    """
    rows: list[Row] = [
        (f"{OURS} relative to", "best rival", "requests", "tokens", "best rule on our engines", "requests", "tokens")
    ]
    for cell in matrix.cells:
        shown = [cell]
        for on_our_engines in (False, True):
            of_requests = gain(matrix, cell, in_requests, on_our_engines=on_our_engines)
            of_tokens = gain(matrix, cell, in_tokens, on_our_engines=on_our_engines)
            shown += [of_requests.rival if of_requests else "-", str(of_requests or "-"), str(of_tokens or "-")]
        rows.append(tuple(shown))
    return rows


def details(matrix: Matrix) -> list[Row]:
    """Who is served at the highest rate of each policy: shares of tokens, of refused requests, and by prompt length."""
    rows: list[Row] = [
        (
            "cell",
            "policy",
            "tokens in SLO",
            "refused",
            "handed over",
            "shortest quarter",
            "2nd",
            "3rd",
            "longest",
            "longest tenth",
        )
    ]
    for cell in matrix.cells:
        for policy in matrix.policies:
            found = matrix.summaries(cell, policy)
            if found:
                shares = [
                    fmean(summary.token_attainment for summary in found),
                    1.0 - fmean(summary.accepted for summary in found),
                    fmean(summary.by_path.get(Path.PREFILL_DECODE, 0.0) for summary in found),
                    *(fmean(summary.by_prompt_length[quarter] for summary in found) for quarter in range(4)),
                    fmean(summary.longest_tenth for summary in found),
                ]
                rows.append((cell, policy, *(f"{100 * share:.0f} %" for share in shares)))
    return rows


def markdown(rows: Sequence[Row]) -> str:
    head, *body = rows
    rule = ("---", *("---:" for _ in head[1:]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *body)) + "\n"
