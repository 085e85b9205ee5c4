"""Loads an endpoint once, or at one rate after another, and searches the highest rate that attains a target.

Each rate is a load of its own, whose prompts no cache knows from the loads before.
"""

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from cluster.load.generator import Generator, Progress, Sent
from cluster.load.live_view import LiveView
from cluster.load.record import LoadRecord
from cluster.load.report.document import HighestRate, LoadReport, LoadSetup, highest_rate
from cluster.load.report.figures import LoadFigures, figures
from cluster.load.sender import Sender
from cluster.load.workload import LengthCut, Source, endless, open_rows
from cluster.simulation.rate_search import Bracket
from cluster.simulation.traffic.workload import Arrival

RATE_RATIO = 1.1
"""Ratio of the rates at which a search ends. Closer to 1 takes more loads, whose figures differ by chance; further from
1 gives coarser rates.
"""


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which loads are run."""

    rates: list[float]
    """Of open loops. Empty for the times of the source, or a closed loop."""
    num_users: int | None
    """Of a closed loop. None for open loops."""
    speed: float = 1.0
    """Factor on the times of the source."""
    number: int | None = None
    duration_s: float | None = None
    """Seconds in which requests are sent."""
    searches: bool = False
    """Whether a rate between the last that attains the target and the first that misses it is searched."""
    target: float = 0.9


class LoadExperiment:
    def __init__(
        self,
        plan: LoadPlan,
        setup: LoadSetup,
        source: Source,
        cut: LengthCut,
        sender_of: Callable[[str], Sender],
        on_record: Callable[[int, LoadRecord], None],
    ) -> None:
        """`sender_of`: a sender whose prompts are of this salt. `on_record`: takes the number of each load, from 0, and
        the records of its requests as they end.
        """
        self._plan, self._setup, self._source, self._cut = plan, setup, source, cut
        self._sender_of, self._on_record = sender_of, on_record
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._runs: list[LoadFigures] = []
        self._num_cut = 0
        self.records: list[list[LoadRecord]] = []
        """Of each load."""
        self._generator: Generator | None = None
        self.is_stopped = False

    def stop(self) -> None:
        """End the load that runs, and begin no other."""
        self.is_stopped = True
        if self._generator is not None:
            self._generator.stop()

    async def run(self) -> LoadReport:
        plan = self._plan
        if not plan.rates:
            await self._load(None)
            return self._report(None)
        bracket = Bracket(plan.target, RATE_RATIO)
        has_missed = False
        for rate in plan.rates:
            has_missed = not bracket.learn(rate, await self._load(rate))
            if self.is_stopped or (has_missed and plan.searches):
                break
        while plan.searches and not self.is_stopped and (between := bracket.inside()) is not None:
            bracket.learn(between, await self._load(between))
        return self._report(self._highest() if len(plan.rates) > 1 else None)

    @property
    def shown_records(self) -> list[LoadRecord]:
        """The records of the load that the report shows."""
        shown = self._report(self._highest()).shown
        return self.records[self._runs.index(shown)]

    def _highest(self) -> HighestRate | None:
        return highest_rate(self._runs, self._plan.target) if len(self._plan.rates) > 1 else None

    def _report(self, highest: HighestRate | None) -> LoadReport:
        setup = msgspec.structs.replace(self._setup, num_cut=self._num_cut)
        return LoadReport(started_at=self._started_at, setup=setup, runs=self._runs, highest_rate=highest)

    async def _load(self, rate: float | None) -> float:
        """Run one load. Returns its attainment."""
        number, setup = len(self._runs), self._setup
        slos = {slo_class: promised.slo for slo_class, promised in setup.slos.items()}
        view = LiveView(self._name(rate), slos)

        def on_record(record: LoadRecord) -> None:
            view.add(record)
            self._on_record(number, record)

        self._generator = Generator(self._sender_of(f"{setup.seed}/{number}"), on_record, view.progress)
        async with view:
            sent = await (
                self._open(rate, view.progress) if self._plan.num_users is None else self._closed(view.progress)
            )
        # An open loop at times of its source has a rate, too
        asked = rate if rate is not None or self._plan.num_users is not None else self._own_rate
        self.records.append(sent.records)
        self._runs.append(
            figures(
                sent.records,
                slos,
                sent.generator,
                warm_up=setup.warm_up,
                rate=asked,
            )
        )
        return self._runs[-1].attainment.value

    async def _open(self, rate: float | None, progress: Progress) -> Sent:
        plan = self._plan
        rows = open_rows(
            self._source,
            rate=rate,
            speed=plan.speed,
            number=plan.number,
            duration_s=plan.duration_s,
            seed=self._setup.seed,
        )
        rows = self._within(rows)
        progress.num_planned = len(rows)
        self._own_rate = len(rows) / max(rows[-1].arrival_s, 1e-9) if rows else 0.0
        assert self._generator is not None
        return await self._generator.open_loop(rows)

    async def _closed(self, progress: Progress) -> Sent:
        plan = self._plan
        progress.num_planned = plan.number
        assert self._generator is not None and plan.num_users is not None
        sessions = endless(self._source, self._setup.seed, self._cut)
        return await self._generator.closed_loop(sessions, plan.num_users, plan.number, plan.duration_s)

    def _within(self, rows: list[Arrival]) -> list[Arrival]:
        kept = [self._cut.apply(row) for row in rows]
        self._num_cut = sum(one is not other for one, other in zip(rows, kept, strict=True))
        return kept

    def _name(self, rate: float | None) -> str:
        if self._plan.num_users is not None:
            return f"closed loop, {self._plan.num_users} users"
        return f"open loop, {rate:.3g} req/s" if rate is not None else f"open loop, {self._source.name}"
