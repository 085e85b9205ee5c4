"""What an engine's prefills ask of vLLM, and what they make of its answers, without an engine."""

import pytest

from cluster.engine.prefills import EnginePrefills
from cluster.messages.generation import FinishReason
from kvtransfer import verify
from kvtransfer.handoff import PREFILL_REQUEST, KVHandoff
from tests.component.cluster.engine.fake_runner import MAX_MODEL_LEN, PARAMS, PROMPT, A, B, R, Runner, a_request


async def test_prefill_asks_for_one_token_and_keeps_the_blocks() -> None:
    runner = Runner()
    prefilled = await EnginePrefills(runner, MAX_MODEL_LEN).prefill(
        a_request(max_tokens=50, min_tokens=5, stop=["end"], logprobs=2, is_verified=True)
    )
    assert prefilled is not None
    result, kept_since = prefilled
    assert (result.first.token_ids, result.first.finish_reason, kept_since) == ([9], None, 4.0)
    assert result.handoff == KVHandoff.from_engine(runner.worker, PARAMS)
    assert runner.kv_transfer_params == PREFILL_REQUEST
    params = runner.params
    assert params is not None
    assert (params.max_tokens, params.min_tokens, params.stop, params.detokenize) == (1, 0, [], False)
    assert params.logprobs == verify.NUM_TOP
    assert runner.stopped == [R]


@pytest.mark.parametrize(
    ("num_generated", "max_tokens", "max_model_len", "finish"),
    [
        (0, 2, MAX_MODEL_LEN, None),
        (0, 1, MAX_MODEL_LEN, FinishReason.LENGTH),
        (4, 5, MAX_MODEL_LEN, FinishReason.LENGTH),
        (0, None, len(PROMPT) + 1, FinishReason.LENGTH),
    ],
    ids=["goes on", "one token", "last of a resumed answer", "context is full"],
)
async def test_first_token_has_a_finish_reason_if_it_is_the_last(
    num_generated: int, max_tokens: int | None, max_model_len: int, finish: FinishReason | None
) -> None:
    request = a_request(num_generated, max_tokens=max_tokens)
    prefilled = await EnginePrefills(Runner(), max_model_len).prefill(request)
    assert prefilled is not None
    assert prefilled[0].first.finish_reason is finish


async def test_first_token_that_ends_the_answer_says_so() -> None:
    runner = Runner()
    runner.finish = FinishReason.STOP
    prefilled = await EnginePrefills(runner, MAX_MODEL_LEN).prefill(a_request(max_tokens=50))
    assert prefilled is not None
    assert prefilled[0].first.finish_reason is FinishReason.STOP


async def test_prefill_that_was_aborted_has_no_result() -> None:
    runner = Runner()
    runner.returned = None
    assert await EnginePrefills(runner, MAX_MODEL_LEN).prefill(a_request()) is None


async def test_lease_is_extended_only_if_all_ranks_keep_its_blocks() -> None:
    runner = Runner()
    runner.answers = [[A, B], [B]]
    assert await EnginePrefills(runner, MAX_MODEL_LEN).extend_leases([A, B], 3.0) == [B]
    assert runner.calls == [("baton_extend_leases", ([A, B], 3.0))]
