from typing import Any

import msgspec
import pytest

from api.tracing.tail_sampling import BURST_S, MOST_PER_S, TailSampler
from cluster.config.observability.tracing import KeptTraces
from cluster.messages.ids import Outcome, WorkerId
from cluster.messages.placement import Slo
from cluster.messages.timeline import TimelineStage
from cluster.observability.trace_context import TraceContext
from cluster.slo import SloConfig
from tests.unit.api.server.test_kept_receipts import ATTEMPT, PLACED
from tests.unit.factories import a_receipt

HIGH, LOW = (TraceContext(trace_id=f"{number:032x}", span_id="1" * 16) for number in (1, 65))
"""Left out of the share and in it, with SECRET."""
ASKED = msgspec.structs.replace(HIGH, is_sampled=True)
TIGHT = msgspec.structs.replace(PLACED, slo=Slo(0.001, 0.001))
"""The request has set objectives of its own."""
LONG = msgspec.structs.replace(PLACED, slo=Slo(5.0, 0.05))
"""Its prompt has made the TTFT objective of the class longer."""
USUAL, SECRET = KeptTraces(), b"secret"
VERIFIED = msgspec.structs.replace(ATTEMPT, timeline=(TimelineStage("verify", 0.1, 0.2, WorkerId("d0")),))


def a_sampler(keep: KeptTraces = USUAL, secret: bytes = SECRET) -> TailSampler:
    return TailSampler(keep, SloConfig(), secret)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, None),
        ({"ttft_s": 1.5}, "slow"),
        ({"tpot_s": 0.06}, "slow"),
        ({"outcome": Outcome.FAILED}, "failed"),
        ({"outcome": Outcome.REJECTED, "placement": None}, "refused"),
        ({"outcome": Outcome.ABORTED}, None),
        ({"attempts": (VERIFIED,)}, "verified"),
        ({"trace": ASKED}, "asked"),
        ({"trace": LOW}, "share"),
        ({"placement": TIGHT, "ttft_s": 0.9, "tpot_s": 0.04}, None),
        ({"placement": TIGHT, "ttft_s": 1.1}, "slow"),
        ({"placement": TIGHT, "tpot_s": 0.06}, "slow"),
        ({"placement": LONG, "ttft_s": 4.0}, None),
    ],
    ids=str,
)
def test_what_is_worth_a_look_is_kept(fields: dict[str, Any], why: str | None) -> None:
    receipt = a_receipt(**({"placement": PLACED, "trace": HIGH} | fields))
    assert a_sampler().why_kept(receipt, 1.0) == why


def test_each_reason_can_be_turned_off() -> None:
    keep = KeptTraces(slow=False, failed=False, refused=False, verified=False, share=0.0)
    for fields in (
        {"ttft_s": 1.5},
        {"outcome": Outcome.FAILED},
        {"outcome": Outcome.REJECTED},
        {"attempts": (VERIFIED,)},
    ):
        receipt = a_receipt(**({"placement": PLACED, "trace": HIGH} | fields))
        assert a_sampler(keep).why_kept(receipt, 1.0) is None


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("asked", {"trace": ASKED}),
        ("slow", {"ttft_s": 1.5}),
        ("failed", {"outcome": Outcome.FAILED}),
        ("refused", {"outcome": Outcome.REJECTED, "placement": None}),
    ],
)
def test_clients_cannot_have_everything_kept(why: str, fields: dict[str, Any]) -> None:
    sampler = a_sampler()
    receipt = a_receipt(**({"placement": PLACED, "trace": HIGH} | fields))
    kept = [sampler.why_kept(receipt, 1.0) for _ in range(1000)]
    assert kept.count(why) == BURST_S * MOST_PER_S[why]
    assert kept.count(None) == 1000 - kept.count(why)
    assert [sampler.why_kept(receipt, 2.0) for _ in range(100)].count(why) == MOST_PER_S[why]


def test_reason_that_has_used_its_rate_leaves_the_others_theirs() -> None:
    sampler = a_sampler()
    for _ in range(1000):
        sampler.why_kept(a_receipt(outcome=Outcome.REJECTED, trace=HIGH), 1.0)
    assert sampler.why_kept(a_receipt(outcome=Outcome.FAILED, trace=HIGH), 1.0) == "failed"
    assert sampler.why_kept(a_receipt(outcome=Outcome.REJECTED, trace=LOW), 1.0) == "share"


def test_share_is_the_same_for_all_requests_of_a_trace_and_about_as_large_as_it_should_be() -> None:
    """And no client knows which trace ids it has: another process has others."""
    sampler = a_sampler(KeptTraces(share=0.25))
    receipts = [
        a_receipt(placement=PLACED, trace=TraceContext(trace_id=f"{n << 64:032x}", span_id="1" * 16))
        for n in range(1024)
    ]
    kept = [sampler.why_kept(receipt, 1.0) for receipt in receipts]
    assert 200 < kept.count("share") < 312
    assert kept == [sampler.why_kept(receipt, 9.0) for receipt in receipts]
    other = a_sampler(KeptTraces(share=0.25), b"another")
    assert kept != [other.why_kept(receipt, 1.0) for receipt in receipts]
