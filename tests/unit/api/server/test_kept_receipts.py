import pytest

from api.server import kept_receipts
from api.server.kept_receipts import KEPT_S, MOST_FOUND, KeptReceipts
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Path, WorkerId
from cluster.messages.placement import Placement, Prediction, Slo
from cluster.messages.timeline import TimelineStage
from router.session.receipt import AttemptEnd, AttemptReceipt
from tests.unit.factories import a_receipt

D = WorkerId("d0")
PLACED = Placement(
    path=Path.DECODE,
    prefill=None,
    decode=D,
    why="least cost",
    slo=Slo(1.0, 0.05),
    predicted=Prediction(Path.DECODE, None, D, 0.4, 0.02, 0.1, 0.0, 0.2, 0.3),
)
ATTEMPT = AttemptReceipt(
    number=1,
    path=Path.DECODE,
    worker=D,
    prefill_worker=None,
    end=AttemptEnd.FINISHED,
    num_prompt_tokens=4,
    num_delivered=3,
    num_generated=3,
    num_prefill_generated=0,
    is_complete=True,
    prefill_sources=None,
    sources=PromptTokenSources(1, 3, 0),
    shown_sources=None,
    began_s=0.1,
    ended_s=2.0,
    timeline=(TimelineStage("prefill", 0.1, 0.5, D, {"tokens": 4}), TimelineStage("decode", 0.5, 2.0, D)),
)


class Kept(KeptReceipts):
    def __init__(self, most: int) -> None:
        self.now = 1e9
        super().__init__(most, lambda: self.now)

    @property
    def names(self) -> list[str]:
        return [receipt.request_id for receipt in self.last(99)]


def test_receipt_is_kept_whole() -> None:
    receipt = a_receipt(
        placement=PLACED, attempts=(ATTEMPT,), timeline=(TimelineStage("prepare", 0.0, 0.1, "ingress"),)
    )
    kept = Kept(2)
    kept.add(receipt)
    assert kept.last(1) == [kept.named("r")[0].receipt()] == [receipt]


def test_only_the_latest_are_kept() -> None:
    kept = Kept(2)
    for number in range(3):
        kept.add(a_receipt(f"r{number}"))
    assert kept.names == ["r2", "r1"]
    assert kept.named("r0") == []


def test_nothing_is_kept_if_nothing_is_wanted() -> None:
    kept = Kept(0)
    kept.add(a_receipt())
    assert kept.names == []


def test_receipts_are_forgotten_after_an_hour_also_if_no_other_comes() -> None:
    kept = Kept(9)
    kept.add(a_receipt("old"))
    kept.now += KEPT_S / 2
    kept.add(a_receipt("new"))
    kept.now += KEPT_S / 2 + 1
    assert kept.named("old") == []
    assert kept.names == ["new"]


def test_large_receipts_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_receipts, "MOST_BYTES", 5000)
    kept = Kept(1000)
    for number in range(50):
        kept.add(a_receipt(f"r{number}", engines_lost=[WorkerId("d" * 100)] * 10))
    assert 1 <= len(kept.names) <= 4
    assert kept.names[0] == "r49"


def test_receipts_are_found_by_either_id_and_the_newest_first() -> None:
    kept = Kept(99)
    for number in range(30):
        kept.add(a_receipt(f"r{number}", http_request="req" if number % 10 else "other"))
    assert [found.request_id for found in kept.named("r7")] == ["r7"]
    assert [found.request_id for found in kept.named("other")] == ["r20", "r10", "r0"]
    assert len(kept.named("req")) == MOST_FOUND
    assert kept.named("") == []


def test_client_that_uses_an_id_of_another_one_pushes_no_receipt_out() -> None:
    kept = Kept(999)
    kept.add(a_receipt("victim", http_request="order-1"))
    for number in range(50):
        kept.add(a_receipt(f"a{number}", http_request="order-1"))
        kept.add(a_receipt(f"b{number}", http_request="victim"))
    by_order = [found.request_id for found in kept.named("order-1")]
    assert by_order == [*(f"a{number}" for number in range(49, 39, -1)), *(f"a{n}" for n in range(8, -1, -1)), "victim"]
    by_session = [found.request_id for found in kept.named("victim")]
    assert (by_session[:2], len(by_session)) == (["victim", "b49"], MOST_FOUND)
