"""What a service's own metrics say of the answers that the flows of a client have cancelled in mid-stream."""

from collections.abc import Iterable
from typing import Protocol

from tests.clients.running import Outcome
from tests.real_cluster.service import wait_for

FREED_WITHIN_S = 10.0
"""Time after which the engines hold nothing of cancelled answers. Less fails on a busy machine; in more, an answer that
goes on would end by itself.
"""
CANCELS = "cancel in mid-stream"
"""What the names of flows contain that cancel one answer each."""


class Metered(Protocol):
    """A service whose metrics can be read (tests/real_cluster/service.py)."""

    def metric(self, name: str, **labels: str) -> float: ...

    def is_idle(self) -> bool: ...


class CancelledAnswers:
    """Those of a service since now."""

    def __init__(self, service: Metered) -> None:
        self._service = service
        self._before = self._num_aborted()

    def fault(self, outcomes: Iterable[Outcome], within_s: float | None = None) -> str | None:
        """What is wrong, once the flows with these outcomes are over: each flow that cancels has one request aborted,
        the others none, and no engine holds anything. None if that is so. A flow that fails has not come to its cancel.
        """
        within_s = FREED_WITHIN_S if within_s is None else within_s
        wanted = sum(CANCELS in outcome.flow and outcome.ok for outcome in outcomes)
        try:
            wait_for(lambda: self._service.is_idle() and self._new() >= wanted, within_s)
        except TimeoutError:
            if not self._service.is_idle():
                return f"{within_s:g} s after the flows, engines still hold something of them"
        if self._new() != wanted:
            return f"{wanted} answers were cancelled in mid-stream, and {self._new():g} requests were aborted"
        return None

    def _new(self) -> float:
        return self._num_aborted() - self._before

    def _num_aborted(self) -> float:
        return self._service.metric("baton_requests_total", outcome="aborted")
