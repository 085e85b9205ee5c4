"""What an option charges is what its workers take, whether the option was priced or not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.messages.ids import Path, RequestId
from router.placement.cost import alone, hand_over
from router.placement.work import DecodePart, prefill_part, unpriced_work
from tests.unit.clusters import a_cluster, ask, decoding, put


@settings(max_examples=30)
@given(num_prompt=st.integers(1, 30_000), num_running=st.integers(0, 5), num_queued=st.integers(0, 3))
def test_priced_option_carries_the_work_that_its_placement_takes(
    num_prompt: int, num_running: int, num_queued: int
) -> None:
    state, now = a_cluster(1, 1), 1.0
    for number in range(num_running):
        decoding(state, f"running{number}", 500, "d0", now)
    for number in range(num_queued):
        put(state, ask(f"queued{number}", 2000, path=Path.PREFILL_DECODE), now)
        put(state, ask(f"queued{number} D", 2000, path=Path.DECODE), now)
    placement_input = state._placer.input_of(ask("r", num_prompt), 0.0, [], now)
    models, (prefill, decode) = state.models, state._workers.by_id.values()
    part = DecodePart(placement_input, decode)
    pair = hand_over(placement_input, prefill_part(placement_input, prefill), part, models)
    stayed = alone(placement_input, part, models)
    for option in (pair, stayed):
        work = unpriced_work(placement_input, option.prefill, option.decode, models)
        assert option.work.prefill_s == pytest.approx(work.prefill_s)
        assert option.work.stall_s == pytest.approx(work.stall_s)
        assert option.work.joins_s == pytest.approx(work.joins_s)
        assert 0.0 <= work.stall_s <= work.prefill_s <= work.joins_s


def test_placement_charges_both_workers_of_a_pair() -> None:
    state, now = a_cluster(1, 1), 1.0
    put(state, ask("r", 4000, path=Path.PREFILL_DECODE), now)
    prefill, decode = state._workers.by_id.values()
    charge = state._charges.find(RequestId("r"))
    assert charge is not None
    assert prefill.prompts.seconds(now) == pytest.approx(charge.prefill_s)
    assert prefill.link_free_at == decode.link_free_at == charge.joins_at
    assert (list(prefill.outbound), list(decode.inbound)) == (["r"], ["r"])
    assert charge.joins_at > now + charge.prefill_s
