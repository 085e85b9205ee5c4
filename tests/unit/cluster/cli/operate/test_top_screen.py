"""What `baton top` draws is what the document says, on a terminal of any size."""

from io import StringIO
from typing import Any

import pytest

from api.web.live_document import FORM, ClusterState, LiveDocument, cluster_lines
from api.web.recent_requests import EndedRequest, StageLine, recent_requests
from cluster.cli.operate.top_screen import Screen, bar_of, console_of, screen_of
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Path, SloClass, WorkerId
from cluster.messages.operations import LinkDoubt, UnprovedLink, WorkerCondition
from cluster.messages.placement import Placement, Prediction, Slo
from cluster.messages.timeline import TimelineStage
from cluster.messages.views import Readiness
from tests.unit.factories import a_receipt
from tests.unit.statuses import a_scheduler_status, a_worker_status

LARGE = Screen(lines=60, columns=160)
NOW = 1000.0
PREDICTED = Prediction(Path.DECODE, None, WorkerId("d0"), 0.4, 0.02, 0.1, 0.0, 0.2, 0.3)
PLACEMENT = Placement(
    path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="cheapest", slo=Slo(1.0, 0.05), predicted=PREDICTED
)


def a_document(*receipts: Any, num_kept: int = 10, **cluster: Any) -> LiveDocument:
    status = a_scheduler_status(
        a_worker_status("p0", num_placed=3, kv_usage=0.25, max_requests=8),
        a_worker_status("d0", condition=WorkerCondition.SUSPECTED),
        waiting={SloClass.BATCH: 2},
        oldest_wait_s=1.5,
        unproved=[UnprovedLink(prefill=WorkerId("p0"), decode=WorkerId("d0"), doubt=LinkDoubt.FAILED)],
    )
    state = {"age_s": 0.0, "error": None, "known": cluster_lines([status], [], Readiness(1, 1, 1))} | cluster
    return LiveDocument(
        form=FORM,
        number=1,
        replica="replica-0",
        model="baton-demo",
        at=NOW,
        every_s=1.0,
        cluster=ClusterState(**state),
        requests=recent_requests([EndedRequest(receipt, NOW - 1) for receipt in receipts], num_kept, NOW),
    )


def drawn(document: LiveDocument, screen: Screen = LARGE) -> list[str]:
    out = StringIO()
    console_of(out, width=screen.columns, height=screen.lines).print(screen_of(document, screen))
    return out.getvalue().splitlines()


def line_of(lines: list[str], begin: str) -> list[str]:
    (found,) = [line for line in lines if line.startswith(begin)]
    return found.split()


def test_pools_workers_links_and_waiting_requests_are_shown() -> None:
    lines = drawn(a_document())
    assert line_of(lines, "0 open")[2:9] == ["2", "waiting,", "for", "up", "to", "1.5", "s;"]
    assert line_of(lines, "prefill ") == ["prefill", "1", "0", "3", "8", "25%", "25%"]
    assert line_of(lines, "p0") == ["p0", "prefill", "ready", "3/8", "0", "0", "0", "25%", "1"]
    assert line_of(lines, "d0") == ["d0", "decode", "suspected", "0/512", "0", "0", "-", "10%", "1"]
    assert "link p0 -> d0: the last attempt failed" in lines


def test_requests_are_shown_with_goodput_latencies_and_where_their_time_went() -> None:
    timeline = (TimelineStage("queue", 0.0, 0.5, "scheduler"), TimelineStage("prefill", 0.5, 1.0, "p0"))
    good = a_receipt("a", placement=PLACEMENT, timeline=timeline, duration_s=1.0, sources=PromptTokenSources(1, 3, 0))
    late = a_receipt("b", placement=PLACEMENT, ttft_s=12.0)
    lines = drawn(a_document(good, late))
    assert any(line.endswith("good requests/s; D 2") for line in lines)
    assert line_of(lines, "standard")[:5] == ["standard", "2", "50.0%", "500", "ms"]
    row = line_of(lines, "a ")
    assert row[1:7] == ["D", "good", "500", "ms", "10", "ms"]
    assert row[7:] == ["400", "ms", "standard", "4", "75%", "3", "w" * 14 + "P" * 14]
    assert line_of(lines, "b ")[2:5] == ["ttft_missed", "12.0", "s"]


def test_scheduler_that_does_not_answer_is_said_with_what_was_known() -> None:
    lines = drawn(a_document(age_s=65.0, error="it cannot be reached"))
    assert "The Scheduler does not answer: it cannot be reached. Last known: 1 min 5 s ago." in lines
    assert line_of(lines, "p0")
    lines = drawn(a_document(age_s=None, known=None, error="it cannot be reached"))
    assert "The Scheduler does not answer: it cannot be reached. Nothing is known yet." in lines


def test_without_receipts_it_says_how_to_have_some() -> None:
    assert "No receipts are kept (ingress.keep_receipts is 0), so there are no latencies." in drawn(
        a_document(num_kept=0)
    )


@pytest.mark.parametrize("name", ["[red]x[/red]", "[/x]", "\x1b[31mx", "a\rb", "\u202ex", ":smile:"])
def test_texts_of_others_are_neither_markup_nor_control(name: str) -> None:
    lines = drawn(a_document(a_receipt("r", http_request=name), error=name, age_s=1.0))
    out = "\n".join(lines)
    assert "\x1b" not in out
    assert "\r" not in out
    assert "\u202e" not in out
    if name.isprintable():
        assert out.count(name) == 2


@pytest.mark.parametrize(("height", "width"), [(24, 80), (30, 100), (60, 200), (5, 100)])
def test_screen_is_not_higher_than_the_terminal_needs(height: int, width: int) -> None:
    workers = [a_worker_status(f"d{number}", num_placed=number) for number in range(300)]
    known = cluster_lines([a_scheduler_status(*workers)], [], Readiness(1, 1, 1))
    receipts = [a_receipt(f"r{number}") for number in range(50)]
    lines = drawn(a_document(*receipts, num_kept=100, known=known), Screen(lines=height, columns=width))
    assert len(lines) <= max(height, 24)
    assert any("more, which have less to do" in line for line in lines) or width < 80


def stage(name: str, start_s: float, end_s: float) -> StageLine:
    return StageLine(name=name, start_s=start_s, end_s=end_s)


def test_bar_has_the_stage_of_each_part_of_the_time() -> None:
    stages = [stage("queue", 0.0, 7.0), stage("prefill", 7.0, 14.0), stage("pull_read", 14.0, 21.0)]
    assert bar_of([*stages, stage("decode", 21.0, 28.0)], 28.0).plain == "w" * 7 + "P" * 7 + "m" * 7 + "D" * 7
    assert bar_of(stages, 42.0).plain == "w" * 5 + "P" * 4 + "m" * 5
    assert bar_of([], 1.0).plain == ""
    assert bar_of(stages, 0.0).plain == ""


def test_bar_of_stages_side_by_side_has_the_one_that_began_last() -> None:
    assert bar_of([stage("hold", 0.0, 28.0), stage("decode", 14.0, 28.0)], 28.0).plain == "w" * 14 + "D" * 14
