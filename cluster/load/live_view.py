"""Shows how a load goes on: a table that is drawn anew on a terminal, and a line now and then elsewhere.

The view is on standard error. Standard output has the report alone.
"""

import asyncio
import sys
import time
from collections import Counter, deque
from contextlib import suppress
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from cluster.load.generator import Progress
from cluster.load.record import LoadEnding, LoadRecord
from cluster.messages.ids import SloClass
from cluster.messages.placement import Slo
from cluster.simulation.results.summary import quantile

TERMINAL_INTERVAL_S, LINE_INTERVAL_S = 0.5, 10.0
"""Time between two views on a terminal, and between two lines elsewhere, in seconds. Longer shows progress later;
shorter takes more of the generator's time, or fills a log.
"""
RECENT = 200
"""Last requests whose latencies a view shows. More react later; fewer jump."""


class LiveView:
    """Use as an asynchronous context manager around a load."""

    def __init__(self, what: str, slos: dict[SloClass, Slo], stream: TextIO | None = None) -> None:
        self.progress = Progress()
        self._what, self._slos = what, slos
        self._stream = stream or sys.stderr
        self._recent: deque[LoadRecord] = deque(maxlen=RECENT)
        self._endings: Counter[LoadEnding] = Counter()
        self._num_good = self._num_tokens = 0
        self._began = time.perf_counter()
        self._task: asyncio.Task[None] | None = None

    def add(self, record: LoadRecord) -> None:
        """One more request has ended."""
        self._recent.append(record)
        self._endings[record.ending] += 1
        self._num_good += record.is_good(self._slos[record.slo_class])
        self._num_tokens += record.num_output or 0

    async def __aenter__(self) -> "LiveView":
        self._began = time.perf_counter()
        self._task = asyncio.create_task(self._draw() if self._stream.isatty() else self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _draw(self) -> None:
        with Live(self._table(), console=Console(file=self._stream), auto_refresh=False, transient=True) as live:
            while True:
                await asyncio.sleep(TERMINAL_INTERVAL_S)
                live.update(self._table(), refresh=True)

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(LINE_INTERVAL_S)
            print(f"{self._what}: " + ", ".join(f"{name} {value}" for name, value in self.rows()), file=self._stream)

    def _table(self) -> Table:
        table = Table(title=self._what, show_header=False, title_justify="left")
        for name, value in self.rows():
            table.add_row(name, value)
        return table

    def rows(self) -> list[tuple[str, str]]:
        """Names and values, as they are now."""
        elapsed_s = max(1e-9, time.perf_counter() - self._began)
        planned = f" of {self.progress.num_planned}" if self.progress.num_planned is not None else ""
        num_ended = sum(self._endings.values())
        num_finished, num_refused = self._endings[LoadEnding.FINISHED], self._endings[LoadEnding.REFUSED]
        return [
            ("elapsed", f"{elapsed_s:.0f} s"),
            ("sent", f"{self.progress.num_sent}{planned} ({self.progress.num_sent / elapsed_s:.2f}/s)"),
            ("open", str(self.progress.num_open)),
            ("finished", str(num_finished)),
            ("refused", str(num_refused)),
            ("failed", str(num_ended - num_finished - num_refused)),
            ("within SLO", f"{self._num_good / num_ended:.1%}" if num_ended else "-"),
            ("tokens/s", f"{self._num_tokens / elapsed_s:.0f}"),
            ("TTFT p50/p99", self._quantiles([r.ttft_s for r in self._recent if r.ttft_s is not None])),
            ("TPOT p50/p99", self._quantiles([r.tpot_s for r in self._recent if r.tpot_s is not None])),
            ("sent late p99", self._quantiles([r.late_s for r in self._recent]).rpartition("/")[2]),
        ]

    def _quantiles(self, seconds: list[float]) -> str:
        ordered = sorted(seconds)
        if not ordered:
            return "-"
        return f"{1e3 * quantile(ordered, 0.5):.0f}/{1e3 * quantile(ordered, 0.99):.0f} ms"
