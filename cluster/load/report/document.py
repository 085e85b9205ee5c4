"""A load's report: what was asked of which endpoint, and the figures. Pure.

The report is written and read as JSON. `format` changes where a field changes its meaning.
"""

from collections.abc import Sequence

import msgspec

from cluster.load.record import LATE_S, MAX_OPEN, LoadEnding
from cluster.load.report.figures import LoadFigures
from cluster.load.report.intervals import Estimate
from cluster.messages.ids import SloClass
from cluster.messages.placement import Slo
from cluster.unreadable import UNREADABLE

FORMAT = 2
LATE_SHARE = 0.01
"""Share of the time with an event loop that is late by more than LATE_S that a report warns of. Higher keeps silent
where times of one token in a hundred are wrong; lower warns of single stalls.
"""
BUSY = 0.8
"""CPU share of the generator that a report warns of. Higher keeps silent where requests wait for the generator; lower
warns without need.
"""
DRAIN_SHARE = 0.1
"""Time after the last request was due, over the time in which requests were due, that a report warns of. Higher keeps
silent where rates have more of the end of the load; lower warns of loads that are only short.
"""
SHORT_SHARE = 0.05
"""Share of answers that end early that a report warns of. Higher compares loads that are not the same."""
PROMPT_ERROR = 0.02
"""Median error of the prompts' lengths that a report warns of. Higher compares loads that are not the same."""
FEW_REQUESTS = 100
"""Requests below which p99 is little more than the slowest one."""


class PromisedTimes(msgspec.Struct, frozen=True):
    """The objectives of one class, in seconds."""

    ttft_s: float
    tpot_s: float

    @property
    def slo(self) -> Slo:
        return Slo(self.ttft_s, self.tpot_s)


class LoadSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked."""

    url: str
    api: str
    model: str
    workload: str
    loop: str
    """`open`, or `closed`."""
    num_users: int | None = None
    """Of a closed loop."""
    seed: int
    warm_up: float
    slos: dict[SloClass, PromisedTimes]
    num_cut: int = 0
    """Requests that were cut to what the model takes."""
    has_measured_words: bool = True
    """Whether the endpoint has counted the tokens of words, or a tokenizer has."""
    max_retries: int = 0


class HighestRate(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a search, which goes by the attained shares. Their intervals tell how much chance has decided."""

    per_s: float
    """Highest rate that attained the target. 0 if none did."""
    attainment: Estimate
    target: float
    is_bounded: bool
    """Whether a higher rate was seen to miss the target."""
    surely_per_s: float | None
    """Highest rate whose whole interval is at the target or above. None if there is none."""
    surely_missed_per_s: float | None
    """Lowest rate whose whole interval is below the target. None if there is none."""


def highest_rate(runs: Sequence[LoadFigures], target: float) -> HighestRate:
    """What the runs of a search have found. Each has a rate."""
    rates = {run.rate_asked or 0.0: run.attainment for run in runs}
    best = max((rate for rate, attained in rates.items() if attained.value >= target), default=0.0)
    return HighestRate(
        per_s=best,
        attainment=rates.get(best, Estimate(0.0, 0.0, 0.0)),
        target=target,
        is_bounded=any(rate > best for rate in rates),
        surely_per_s=max((rate for rate, attained in rates.items() if attained.low >= target), default=None),
        surely_missed_per_s=min((rate for rate, attained in rates.items() if attained.upper < target), default=None),
    )


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    started_at: str
    """UTC, in ISO 8601."""
    setup: LoadSetup
    runs: list[LoadFigures]
    """One for each rate, in the order in which they were tried."""
    highest_rate: HighestRate | None = None

    @property
    def shown(self) -> LoadFigures:
        """The run that stands for the report: the last one at the highest rate of a search, or else the last one."""
        if self.highest_rate is not None:
            at_highest = [run for run in self.runs if run.rate_asked == self.highest_rate.per_s]
            return at_highest[-1] if at_highest else self.runs[0]
        return self.runs[-1]


class NoReport(ValueError):
    """A file is no report of a load."""


class _Format(msgspec.Struct):
    format: int


def parsed_report(text: bytes) -> LoadReport:
    """Read a report.

    Raises:
        NoReport: the text is no report, or of another format.
    """
    try:
        if (found := msgspec.json.decode(text, type=_Format).format) != FORMAT:
            raise NoReport(f"a report of format {found}, and this version reads format {FORMAT}")
        report = msgspec.json.decode(text, type=LoadReport)
    except UNREADABLE as error:
        raise NoReport(f"no report of `baton load`: {error}") from error
    if not report.runs:
        raise NoReport("a report without figures")
    return report


def warnings(report: LoadReport) -> list[str]:
    """What speaks against the figures."""
    found = [line for run in report.runs for line in _of_generator(run)]
    if not report.setup.has_measured_words:
        found.append("the endpoint has not told how many tokens words are: prompts may have any length")
    if report.setup.num_cut:
        found.append(f"{report.setup.num_cut} requests were cut to what the model takes")
    return list(dict.fromkeys(found + _of_answers(report.shown)))


def _of_generator(run: LoadFigures) -> list[str]:
    at = f"at {run.rate_asked:g} req/s " if run.rate_asked is not None else ""
    found = []
    if run.lag.p99_s > LATE_S:
        found.append(f"{at}the generator sent late: {1e3 * run.lag.p99_s:.0f} ms at p99, which TTFT includes")
    if run.generator.loop_late_share > LATE_SHARE:
        found.append(
            f"{at}the generator read late: its event loop was more than {1e3 * LATE_S:.0f} ms behind in "
            f"{run.generator.loop_late_share:.1%} of the time, and {1e3 * run.generator.loop_lag_max_s:.0f} ms at most"
        )
    if run.generator.cpu_share > BUSY:
        found.append(f"{at}the generator took {run.generator.cpu_share:.0%} of a core: run several, or ask for less")
    if run.rate_asked is not None and run.generator.most_open >= MAX_OPEN:
        found.append(f"{at}{MAX_OPEN} requests were open, which is the most: later ones waited")
    return found


def _of_answers(run: LoadFigures) -> list[str]:
    found = []
    num_finished = run.endings.get(LoadEnding.FINISHED, 0)
    if run.drain_s > DRAIN_SHARE * run.window_s:
        found.append(
            f"answers went on for {run.drain_s:.1f} s after the last request was due, which is more than "
            f"{DRAIN_SHARE:.0%} of the load's {run.window_s:.1f} s: a longer load has higher rates per second"
        )
    if run.num_uncounted:
        found.append(f"{run.num_uncounted} answers had no `usage`: they have no TPOT, and do not count as good")
    if num_finished and run.num_short / num_finished > SHORT_SHARE:
        found.append(
            f"{run.num_short} of {num_finished} answers ended before their length: "
            """with vLLM and Baton, --body '{"ignore_eos": true}' lets them go on"""
        )
    if run.prompt_error is not None and run.prompt_error > PROMPT_ERROR:
        found.append(f"prompts were {run.prompt_error:.0%} longer or shorter than planned, in the median")
    if run.num_requests < FEW_REQUESTS:
        found.append(f"{run.num_requests} requests count: p99 is little more than the slowest of them")
    return found
