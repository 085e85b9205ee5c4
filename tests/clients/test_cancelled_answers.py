"""A cancel that the service does not notice, or that goes on in an engine, fails the client."""

import pytest

from tests.clients import __main__ as clients
from tests.clients.cancelled_answers import CancelledAnswers
from tests.clients.catalogue import client_named
from tests.clients.running import Endpoint, Outcome
from tests.expected import present

AT = Endpoint("http://127.0.0.1:9", "unused", "m")
CLIENT = client_named("openai-js")
OUTCOMES = [Outcome(flow, ok=True, detail="") for flow in CLIENT.flows]
CANCELLING = [outcome for outcome in OUTCOMES if "cancel in mid-stream" in outcome.flow]


class CountingService:
    """Aborted some requests before, and `per_cancel` more for each answer that the flows of the client cancel."""

    def __init__(self, per_cancel: float = 1, *, is_idle: bool = True) -> None:
        self.aborted = 5.0
        self._per_cancel = per_cancel
        self._is_idle = is_idle

    def metric(self, name: str, **labels: str) -> float:
        assert (name, labels) == ("baton_requests_total", {"outcome": "aborted"})
        return self.aborted

    def is_idle(self) -> bool:
        return self._is_idle

    def outcomes(self, *_: object) -> list[Outcome]:
        self.aborted += self._per_cancel * len(CANCELLING)
        return OUTCOMES


def test_each_cancelled_answer_is_one_aborted_request() -> None:
    service = CountingService()
    answers = CancelledAnswers(service)
    assert answers.fault([]) is None
    assert answers.fault(service.outcomes(), 0.0) is None
    failed = [Outcome(outcome.flow, ok=False, detail="") for outcome in CANCELLING]
    assert CancelledAnswers(service).fault(failed, 0.0) is None  # they have not come so far


@pytest.mark.parametrize(
    ("service", "why"),
    [
        (CountingService(0), "and 0 requests were aborted"),
        (CountingService(2), f"and {2 * len(CANCELLING)} requests were aborted"),
        (CountingService(is_idle=False), "engines still hold something"),
    ],
    ids=["unnoticed", "too many", "goes on"],
)
def test_cancel_that_does_not_end_its_request_is_a_fault(service: CountingService, why: str) -> None:
    answers = CancelledAnswers(service)
    assert why in present(answers.fault(service.outcomes(), 0.0))


@pytest.mark.parametrize(("per_cancel", "passes"), [(1, True), (0, False)])
def test_client_passes_where_its_cancels_are_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], per_cancel: float, *, passes: bool
) -> None:
    service = CountingService(per_cancel)
    monkeypatch.setattr(clients, "outcomes", service.outcomes)
    monkeypatch.setattr("tests.clients.cancelled_answers.FREED_WITHIN_S", 0.0)
    assert clients.passes(CLIENT, AT, service) is passes
    assert ("FAIL" in capsys.readouterr().out) is not passes


def test_service_of_somebody_else_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "outcomes", CountingService(0).outcomes)
    assert clients.passes(CLIENT, AT, None)
