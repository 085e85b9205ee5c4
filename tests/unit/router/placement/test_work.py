"""What an option charges is what its workers take, whether the option was priced or not."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.messages.ids import Path, RequestId
from router.placement.cost import alone, hand_over
from router.placement.work import DecodePart, prefill_part, slowdown_beside_decodes, unpriced_work
from router.state import RouterState
from tests.unit.clusters import SLO, a_cluster, a_report, ask, decoding, put


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
    placement_input = state._placer.input_of(ask("r", num_prompt), {}, 0.0, [], now)
    models, (prefill, decode) = state.models, state.workers.by_id.values()
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
    prefill, decode = state.workers.by_id.values()
    charge = state._charges.find(RequestId("r"))
    assert charge is not None
    assert prefill.prompts.seconds(now) == pytest.approx(charge.prefill_s)
    assert prefill.link_free_at == decode.link_free_at == charge.joins_at
    assert (list(prefill.outbound), list(decode.inbound)) == (["r"], ["r"])
    assert charge.joins_at > now + charge.prefill_s


@pytest.mark.parametrize(
    ("kind", "tpot_s", "least", "most"),
    [
        ("qwen3-32b|h100|tp2", 0.025, 0.85, 1.1),
        ("qwen3-32b|h100|tp2", 0.03, 0.85, 1.1),
        ("qwen3-32b|h100|tp2", 0.1, 0.85, 1.1),
        ("qwen3-30b-a3b|h100|tp1", 0.02, 0.95, 1.1),
        ("qwen3-30b-a3b|h100|tp1", 0.007, 1.5, 10.0),
        ("unknown|cpu", 0.02, 1.5, 10.0),
    ],
)
def test_prompts_are_slow_beside_decodes_only_where_they_have_little_of_the_step(
    kind: str, tpot_s: float, least: float, most: float
) -> None:
    state, report = RouterState(SLO), a_report("d0")
    state.handle(msgspec.structs.replace(report, shape=msgspec.structs.replace(report.shape, kind=kind)), 0.5)
    (worker,) = state.workers.by_id.values()
    asked = state._placer.input_of(ask("r", 2000, tpot_s=tpot_s), {}, 0.0, [], 1.0)
    assert least < slowdown_beside_decodes(asked, worker) < most


@pytest.mark.parametrize("kind", ["qwen3-32b|h100|tp2", "qwen3-30b-a3b|h100|tp1"])
def test_prompt_without_tokens_beside_others_stops_nothing(kind: str) -> None:
    state, report = RouterState(SLO), a_report("d0")
    state.handle(msgspec.structs.replace(report, shape=msgspec.structs.replace(report.shape, kind=kind)), 0.5)
    decoding(state, "running", 2000, "d0", 1.0)
    put(state, ask("inbound", 2000), 1.1)
    put(state, ask("nothing", 0), 1.2)
