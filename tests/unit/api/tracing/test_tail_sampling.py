from typing import Any

import msgspec
import pytest

from api.tracing.tail_sampling import MOST_ASKED_AT_ONCE, MOST_ASKED_PER_S, TailSampler
from cluster.config.observability.tracing import KeptTraces
from cluster.messages.ids import Outcome, WorkerId
from cluster.messages.timeline import TimelineStage
from cluster.observability.trace_context import TraceContext
from tests.unit.api.server.test_kept_receipts import ATTEMPT, PLACED
from tests.unit.factories import a_receipt

HIGH = TraceContext(trace_id="0" * 16 + "f" * 16, span_id="1" * 16)
ASKED = msgspec.structs.replace(HIGH, is_sampled=True)
VERIFIED = msgspec.structs.replace(ATTEMPT, timeline=(TimelineStage("verify", 0.1, 0.2, WorkerId("d0")),))


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
        ({"trace": TraceContext(trace_id="f" * 16 + "0" * 16, span_id="1" * 16)}, "share"),
    ],
    ids=str,
)
def test_what_is_worth_a_look_is_kept(fields: dict[str, Any], why: str | None) -> None:
    receipt = a_receipt(**({"placement": PLACED, "trace": HIGH} | fields))
    assert TailSampler(KeptTraces()).why_kept(receipt, 1.0) == why


def test_each_reason_can_be_turned_off() -> None:
    keep = KeptTraces(slow=False, failed=False, refused=False, verified=False, share=0.0)
    for fields in (
        {"ttft_s": 1.5},
        {"outcome": Outcome.FAILED},
        {"outcome": Outcome.REJECTED},
        {"attempts": (VERIFIED,)},
    ):
        receipt = a_receipt(**({"placement": PLACED, "trace": HIGH} | fields))
        assert TailSampler(keep).why_kept(receipt, 1.0) is None


def test_clients_cannot_have_everything_kept() -> None:
    sampler = TailSampler(KeptTraces())
    receipt = a_receipt(placement=PLACED, trace=ASKED)
    kept = [sampler.why_kept(receipt, 1.0) for _ in range(1000)]
    assert kept.count("asked") == MOST_ASKED_AT_ONCE
    assert [sampler.why_kept(receipt, 2.0) for _ in range(100)].count("asked") == MOST_ASKED_PER_S


def test_share_is_the_same_for_all_requests_of_a_trace_and_about_as_large_as_it_should_be() -> None:
    sampler = TailSampler(KeptTraces(share=0.25))
    traces = [TraceContext(trace_id=f"{n * 2**54:032x}", span_id="1" * 16) for n in range(1024)]
    kept = [sampler.why_kept(a_receipt(placement=PLACED, trace=trace), 1.0) for trace in traces]
    assert kept.count("share") == 256
    assert kept == [sampler.why_kept(a_receipt(placement=PLACED, trace=trace), 9.0) for trace in traces]
