"""Rules of other routers behind Baton's admission."""

from cluster.messages.ids import Path
from cluster.simulation.baselines import with_admission, with_filter
from cluster.simulation.kv_cost import KvCost
from router.placement.candidates import Candidates, Choice, Policy
from router.placement.placement_input import PlacementInput
from router.prediction.learned_latency import LatencyModels
from router.state import RouterState
from tests.unit.clusters import BLOCK, SLO, a_report, ask, decoding, put


def lowest_name(placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
    worker = min(candidates.decodes, key=lambda worker: worker.worker, default=None)
    return Choice(Path.DECODE, None, worker, "the lowest name") if worker else None


def two_workers(policy: Policy) -> RouterState:
    state = RouterState(SLO, policy)
    for name in ("d0", "d1"):
        state.handle(a_report(name), 0.0)
    return state


def test_rule_with_admission_has_its_choice_judged() -> None:
    state = two_workers(with_admission(lowest_name))
    assert put(state, ask("first", 20_000, ttft_s=2.2), 0.0).generating == "d0"
    assert state.place(ask("second", 20_000, ttft_s=2.2), 0.0) is None


def test_rule_with_filter_chooses_among_the_workers_that_admission_takes() -> None:
    state = two_workers(with_filter(lowest_name))
    assert put(state, ask("first", 20_000, ttft_s=2.2), 0.0).generating == "d0"
    assert put(state, ask("second", 20_000, ttft_s=2.2), 0.0).generating == "d1"
    assert state.place(ask("third", 20_000, ttft_s=2.2), 0.0) is None


def test_kv_cost_weighs_prompt_tokens_to_compute_and_kv_tokens() -> None:
    state = two_workers(KvCost())
    decoding(state, "long", 3000, "d0", 0.0)
    assert put(state, ask("short", 1000), 0.0).generating == "d1"
    assert put(state, ask("next", 2500), 0.0).generating == "d1"
    assert put(state, ask("last", 2000), 0.0).generating == "d0"


def test_kv_cost_counts_blocks_that_requests_share_once() -> None:
    document = [bytes([number]) * 32 for number in range(1030 // BLOCK)]
    state = two_workers(KvCost())
    for number in range(2):
        decoding(state, f"reader-{number}", 1030, "d0", 0.0, block_hashes=document)
    decoding(state, "other", 1200, "d1", 0.0)
    # Counted twice, the document would be 2,060 tokens on d0 against 1,200.
    assert put(state, ask("next", 100, block_hashes=[b"x" * 32]), 0.0).generating == "d0"
