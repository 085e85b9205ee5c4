"""The requests of the quality probe, with the demo model's front half."""

import pytest

from api.frontend.probing import LEAST_LOGPROB, probe_request, steps_of
from api.quality.probe_set import OWN_PROMPTS
from cluster.engine.sampling_params import decode_sampling_params
from cluster.errors import InvalidRequest
from cluster.messages.generation import TokenDelta
from cluster.messages.ids import RequestId
from kvtransfer.verify import NUM_TOP
from tests.component.api.quality.probed_workers import a_delta_of
from tests.component.fake_engines import FakeEngines


@pytest.fixture(scope="module")
def engines() -> FakeEngines:
    return FakeEngines()


@pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning")  # vLLM reads its own field
async def test_prompts_of_texts_and_of_chats_become_tokens(engines: FakeEngines) -> None:
    frontend = await engines.frontend(4096)
    try:
        for prompt in OWN_PROMPTS:
            tokens = await frontend.tokens_of_text(prompt.text or "")
            assert engines.tokenizer.decode(tokens).split() == (prompt.text or "").split()
        chat = await frontend.tokens_of_chat([{"role": "user", "content": "What is the capital of France?"}])
        assert "capital of France" in engines.tokenizer.decode(chat, skip_special_tokens=False)
        with pytest.raises(InvalidRequest):
            await frontend.tokens_of_chat([{"role": "user", "content": "word " * 5000}])
    finally:
        await frontend.close()


def test_answer_is_greedy_of_one_length_and_with_the_most_likely_tokens() -> None:
    request = probe_request(RequestId("r"), [1, 2, 3], 16, "salt")
    params = decode_sampling_params(request.sampling_params)
    assert (params.temperature, params.max_tokens, params.ignore_eos, params.logprobs) == (0.0, 16, True, NUM_TOP)
    assert (request.cache_salt, request.max_output_tokens, request.is_verifiable) == ("salt", 16, False)


def test_steps_have_the_most_likely_tokens_without_the_sampled_one_twice() -> None:
    (step,) = steps_of(a_delta_of(7, None, None))
    assert step.token_id == 7
    assert [token.token_id for token in step.top] == [7, 8, 9, 10, 11]
    assert all(token.logprob > LEAST_LOGPROB for token in step.top)


def test_token_without_log_probabilities_is_a_step_that_agrees_with_none() -> None:
    (step,) = steps_of(TokenDelta(0, [7]))
    assert (step.token_id, step.top) == (7, [])
