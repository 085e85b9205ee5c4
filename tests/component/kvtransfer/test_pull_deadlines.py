"""Until when the decode engine's connector uses what it has pulled, without an engine."""

import queue
import time
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from kvtransfer.checked_agent import CheckedAgent
from kvtransfer.connector import DEADLINES_KEPT_S, HandoffStats, LeasingWorker
from kvtransfer.handoff import PULL_DEADLINE
from kvtransfer.pull_times import PullTimes
from kvtransfer.telemetry import PULLS_KEY, Pull


class Worker(LeasingWorker):
    """Reads that end when a test says so."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.failed: list[str] = []
        self._recving_metadata: dict[str, object] = {}
        self._recv_failures: set[str] = set()
        self._deadlines: dict[str, float] = {}
        self._pulls = PullTimes()
        self.nixl_wrapper = CheckedAgent(self)
        self._ready_requests: queue.Queue[Any] = queue.Queue()
        self._recving_transfers: dict[str, list[int]] = {}
        self.tp_rank = 0
        self.xfer_stats = HandoffStats()

    def _handle_failed_transfer(
        self, req_id: str, handle: int, failures: set[str], record_failed_transfer: bool = True
    ) -> bool:
        self.failed.append(req_id)
        return True


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    def start_load_kv(self: Worker, metadata: SimpleNamespace) -> None:
        for request_id in metadata.reqs_to_recv:
            self._recving_metadata[request_id] = object()
            self._read_blocks_for_req(request_id, object())

    monkeypatch.setattr(NixlPullConnectorWorker, "start_load_kv", start_load_kv)

    def read_blocks(self: Worker, req_id: str, meta: object) -> None:
        self.started.append(req_id)
        if req_id != "in the cache":
            self._recving_transfers[req_id] = [1]

    def pop_done_transfers(self: Worker, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        done = set(transfers)
        transfers.clear()
        return done, set()

    monkeypatch.setattr(NixlPullConnectorWorker, "_read_blocks_for_req", read_blocks)
    monkeypatch.setattr(NixlPullConnectorWorker, "_pop_done_transfers", pop_done_transfers)
    return Worker()


def step(worker: Worker, **deadlines: float) -> None:
    worker.start_load_kv(SimpleNamespace(reqs_to_recv=list(deadlines), **{PULL_DEADLINE: deadlines}))


def ended(worker: Worker, *request_ids: str) -> set[str]:
    """The reads that ended now and do not count."""
    return worker._pop_done_transfers({request_id: [] for request_id in request_ids})[1]


def test_pull_counts_until_its_deadline(worker: Worker) -> None:
    step(worker, early=time.monotonic() + 60, late=time.monotonic() + 0.01)
    assert worker.started == ["early", "late"]
    time.sleep(0.02)  # noqa: TID251
    assert ended(worker, "early", "late") == {"late"}


def test_pull_that_is_late_already_does_not_start(worker: Worker) -> None:
    step(worker, late=time.monotonic() - 1)
    assert (worker.started, worker.failed) == ([], ["late"])


def test_pull_without_a_known_deadline_does_not_count(worker: Worker) -> None:
    assert ended(worker, "unknown") == {"unknown"}


def test_renewal_that_came_before_the_pull_began_is_the_later_word(worker: Worker) -> None:
    worker.renew_pulls({"r": time.monotonic() + 60})
    step(worker, r=time.monotonic() - 1)
    assert ended(worker, "r") == set()


def test_deadline_is_not_forgotten_while_its_read_goes_on(worker: Worker) -> None:
    step(worker, old=time.monotonic() + 60)
    worker._deadlines["old"] = time.monotonic() - DEADLINES_KEPT_S - 1
    step(worker, other=time.monotonic() + 60)
    assert "old" in worker._deadlines
    assert ended(worker, "old", "other") == {"old"}


def test_deadline_of_what_was_never_pulled_is_forgotten(worker: Worker) -> None:
    worker._deadlines["found in the cache"] = time.monotonic() - DEADLINES_KEPT_S - 1
    step(worker, other=time.monotonic() + 60)
    assert worker._deadlines.keys() == {"other"}


def test_reading_time_is_told_with_the_renewal(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NixlPullConnectorWorker, "_pop_done_transfers", lambda self, transfers: (set(), set()))
    worker._pop_done_transfers({"r": [1]})
    assert worker.renew_pulls({"r": 1.0, "queued": 1.0})["queued"] == 0.0
    assert worker.renew_pulls({"r": 1.0})["r"] > 0.0


def test_pulls_that_count_say_how_long_they_took(worker: Worker) -> None:
    step(worker, **{name: time.monotonic() + 60 for name in ("good", "in the cache")}, late=time.monotonic() + 0.01)
    time.sleep(0.02)  # noqa: TID251
    assert ended(worker, "good", "late", "in the cache") == {"late"}
    ((request_id, values),) = worker.xfer_stats.data[PULLS_KEY]
    assert (request_id, 0.02 <= Pull(*values).seconds < 10) == ("good", True)
    assert not worker.xfer_stats.is_empty()
