"""What a user sees while a load runs."""

import asyncio
import io

import pytest

from cluster.load.live_view import LiveView
from tests.unit.cluster.load.report.records import SLOS, record, refused


class Terminal(io.StringIO):
    """A terminal that keeps what it shows, and tells when it has shown a figure."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = asyncio.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "within SLO" in text:
            self.shown.set()
        return super().write(text)


def test_view_counts_refusals_apart_from_failures() -> None:
    view = LiveView("a load", SLOS, io.StringIO())
    for one in (record(0), record(1, ttft_s=2.0), refused(2)):
        view.add(one)
    rows = dict(view.rows())
    assert (rows["finished"], rows["refused"], rows["failed"]) == ("2", "1", "0")
    assert rows["within SLO"] == "33.3%" and rows["TTFT p50/p99"] == "2000/2000 ms"


def test_view_without_any_answer_has_no_figures() -> None:
    assert dict(LiveView("a load", SLOS, io.StringIO()).rows())["TTFT p50/p99"] == "-"


async def test_terminal_shows_a_table() -> None:
    terminal = Terminal()
    async with LiveView("a load", SLOS, terminal):
        await asyncio.wait_for(terminal.shown.wait(), 10)
    assert "a load" in terminal.getvalue()


async def test_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.load.live_view.LINE_INTERVAL_S", 0.01)
    log = Terminal()
    monkeypatch.setattr(log, "isatty", lambda: False)
    async with LiveView("a load", SLOS, log):
        await asyncio.wait_for(log.shown.wait(), 10)
    assert log.getvalue().startswith("a load: elapsed 0 s, sent 0")
