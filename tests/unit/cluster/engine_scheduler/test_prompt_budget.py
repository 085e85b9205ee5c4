from dataclasses import replace
from types import SimpleNamespace

import pytest

from cluster.engine_scheduler.prompt_budget import Decodes, PromptBudget, least_chunk
from cluster.messages.reports import StepSample
from router.prediction.hardware import prior
from router.prediction.learned_latency import NEUTRAL
from router.prediction.step_chunk import LEAST_CHUNK, LEAST_OF_TPOT
from router.prediction.step_pacer import Wanted

DENSE = replace(NEUTRAL, experts_s=0.0)
DECODES = Decodes(8, 8_000, frozenset({0.03}))
MOST = 8192


def a_config(
    *, is_chunked: bool = True, is_hybrid: bool = False, num_drafts: int = 0, lookahead: int = 0
) -> SimpleNamespace:
    return SimpleNamespace(
        num_prefill_lookahead_tokens=lookahead,
        num_speculative_tokens=num_drafts,
        model_config=SimpleNamespace(is_hybrid=is_hybrid, is_attention_free=False),
        cache_config=SimpleNamespace(block_size=528, mamba_cache_mode="align"),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=MOST, max_num_scheduled_tokens=None, enable_chunked_prefill=is_chunked
        ),
    )


def a_sample(num_prefill: int, seconds: float) -> StepSample:
    return StepSample(num_prefill, num_prefill * (num_prefill + 1) // 2, 8, 8_000, seconds)


def chunk_of(budget: PromptBudget, decodes: Decodes = DECODES, context: int = 0) -> int:
    """Tokens of the first prompt of a step, which has `context` tokens already."""
    return budget.beside(decodes, MOST, Wanted(MOST, 0), 0.0).tokens(context)


def test_step_beside_decodes_takes_their_share_of_the_objective() -> None:
    times = prior("llama-3.1-8b|h100")
    assert times
    chunk = chunk_of(PromptBudget(a_config(), times))
    assert times.step_s(chunk, 0, 8, 8_000) == pytest.approx(LEAST_OF_TPOT * 0.03, rel=0.05)


@pytest.mark.parametrize("decodes", [Decodes(), Decodes(8, 8_000)], ids=["nothing decodes", "no objective"])
def test_only_objectives_of_decodes_bound_a_step(decodes: Decodes) -> None:
    assert not PromptBudget(a_config(), None).beside(decodes, MOST, Wanted(MOST, 0), 0.0).is_bounded


def test_objective_that_no_engine_could_keep_slows_no_prompt() -> None:
    budget = PromptBudget(a_config(), NEUTRAL)
    with_a_lost_one = Decodes(8, 8_000, DECODES.objectives_s | {1e-6})
    assert chunk_of(budget, with_a_lost_one) == chunk_of(budget)


def test_prompt_gets_fewer_tokens_where_they_attend_to_more() -> None:
    budget = PromptBudget(a_config(), DENSE)
    chunks = [chunk_of(budget, context=context) for context in (0, 50_000)]
    assert LEAST_CHUNK < chunks[1] < chunks[0]


def test_prompt_whose_beginning_is_cached_gets_fewer_tokens_in_the_same_time() -> None:
    budget = PromptBudget(a_config(), NEUTRAL)
    num_tokens = budget.in_time_of(500, 50_000)
    assert 1 < num_tokens < 400
    knee = NEUTRAL.knee_tokens
    assert NEUTRAL.added_s(num_tokens, knee, 50_000) <= NEUTRAL.added_s(500, knee, 0) * (1 + 1e-9)
    assert budget.in_time_of(500, 0) >= 499
    assert budget.in_time_of(1, 100_000_000) == 1
    assert PromptBudget(a_config(is_hybrid=True), NEUTRAL).in_time_of(528, 50_000) == 528


def test_engine_that_is_slower_than_its_prior_computes_fewer_tokens_beside_decodes() -> None:
    budget = PromptBudget(a_config(), DENSE)
    expected = chunk_of(budget)
    for num_prefill in (0, 0, 100, 200, 0, 300, 100, 0, 50, 150):
        budget.observe(a_sample(num_prefill, 1.5 * DENSE.step_s(*_work(a_sample(num_prefill, 0.0)))))
    assert LEAST_CHUNK <= chunk_of(budget) < expected


def test_first_step_in_which_the_engine_compiles_teaches_nothing() -> None:
    budget = PromptBudget(a_config(), NEUTRAL)
    budget.observe(a_sample(0, 30.0))
    assert budget.times == NEUTRAL


@pytest.mark.parametrize(
    ("config", "least"),
    [(a_config(), 1), (a_config(is_hybrid=True), 528), (a_config(num_drafts=50), 51), (a_config(lookahead=40), 41)],
    ids=["any", "hybrid", "drafts", "lookahead"],
)
def test_some_models_take_no_small_part_of_a_prompt(config: SimpleNamespace, least: int) -> None:
    assert least_chunk(config) == least
    hopeless = Decodes(200, 1_000_000, frozenset({1e-4}))
    assert chunk_of(PromptBudget(config, NEUTRAL), hopeless, 1_000_000) >= max(least, LEAST_CHUNK)


def test_engine_that_computes_each_prompt_in_one_step_has_no_bound() -> None:
    assert not PromptBudget(a_config(is_chunked=False), NEUTRAL).beside(DECODES, MOST, Wanted(MOST, 0), 0.0).is_bounded


def _work(sample: StepSample) -> tuple[int, int, int, int]:
    return sample.num_prefill, sample.attended, sample.num_decoding, sample.context_tokens
