"""The handoff on real engines: decode pulls what prefill computed, and nobody can tell from the text."""

from typing import Any

import openai
import pytest

from tests.drills.word_lists import LONGEST, word_list
from tests.expected import present
from tests.real_cluster.fresh_key import fresh_key
from tests.real_cluster.recall import NUM_RECALL_PROMPTS, recall_prompts
from tests.real_cluster.service import Service, wait_for

LENGTHS = [1, 2, 31, 32, 33, 64, 65, 100, 300, 1000, 2500]
"""Prompt tokens: below, at and above the borders of KV blocks (32 tokens), up to many blocks."""
NUM_OUTPUT_TOKENS = 16
KV_BLOCK = 32


def test_text_is_identical_on_both_paths(service: Service, client: openai.OpenAI, model: str) -> None:
    prompts = [_prompt(length, seed=length) for length in LENGTHS]
    before = service.prompt_tokens("decode")
    handed_over = [_greedy(_stranger(client), model, prompt, "P->D") for prompt in prompts]
    pulled = service.prompt_tokens("decode")
    local = [_greedy(_stranger(client), model, prompt, "D") for prompt in prompts]
    computed = service.prompt_tokens("decode")

    assert handed_over == local
    assert _gained(before, pulled)["pulled"] >= sum(LENGTHS) - len(LENGTHS)
    assert _gained(pulled, computed) == {"computed": sum(LENGTHS), "local": 0, "pulled": 0}


def test_decode_pulls_the_prompt_and_computes_none_of_it(service: Service, client: openai.OpenAI, model: str) -> None:
    prefill, decode = service.prompt_tokens("prefill"), service.prompt_tokens("decode")
    _greedy(client, model, _prompt(700, seed=1), "P->D")
    # Twice the prompt: every handoff is checked, and the prefill worker finds it in its cache then
    prefilled = _gained(prefill, service.prompt_tokens("prefill"))
    assert (prefilled["computed"] + prefilled["local"], prefilled["pulled"]) == (700 + 701, 0)
    assert prefilled["computed"] <= 700 + KV_BLOCK
    # The one is the first token, which the prefill worker has sampled
    assert _gained(decode, service.prompt_tokens("decode")) == {"computed": 1, "local": 0, "pulled": 700}


def test_text_is_the_same_whether_or_not_the_first_token_comes_from_the_prefill_worker(
    service: Service, client: openai.OpenAI, model: str
) -> None:
    prompt = _prompt(200, seed=7)
    fields: list[dict[str, Any]] = [{}, {"stop": ["never said"]}]
    handed_over = [_greedy(_stranger(client), model, prompt, "P->D", **plain) for plain in fields]
    before = service.prompt_tokens("decode")
    computed = _greedy(_stranger(client), model, prompt, "D")
    after = service.prompt_tokens("decode")
    assert _gained(before, after) == {"computed": 200, "local": 0, "pulled": 0}
    assert handed_over == [computed, computed]


def test_blocks_that_were_pulled_are_read_again_and_give_the_same_text(
    service: Service, client: openai.OpenAI, model: str
) -> None:
    prompt = _prompt(200, seed=8)
    computed = _greedy(_stranger(client), model, prompt, "D")
    asks = _stranger(client)
    pulled = _greedy(asks, model, prompt, "P->D")
    before = service.prompt_tokens("decode")
    assert _greedy(asks, model, prompt, "D") == pulled == computed
    assert _gained(before, service.prompt_tokens("decode"))["local"] > 0


def test_scheduler_knows_what_the_workers_cache(service: Service, client: openai.OpenAI, model: str) -> None:
    _greedy(client, model, _prompt(320, seed=60), "P->D")
    wait_for(lambda: service.metric("baton_prefix_index_blocks") >= 320 // KV_BLOCK, 10)
    wait_for(lambda: service.metric("baton_prefix_index_exact_workers") == 2, 10)


def test_prompt_of_one_api_key_is_not_cached_for_another(service: Service, client: openai.OpenAI, model: str) -> None:
    cached = []
    for key in ("one", "one", "two"):
        usage = (
            client.with_options(api_key=key)
            .completions.create(
                model=model, prompt=_prompt(320, seed=61), max_tokens=1, extra_headers={"x-baton-path": "D"}
            )
            .usage
        )
        assert usage is not None and usage.prompt_tokens_details is not None
        cached.append((usage.prompt_tokens_details.cached_tokens or 0) > 0)
    assert cached == [False, True, False]


def test_next_turn_is_computed_where_the_turn_before_was(service: Service, client: openai.OpenAI, model: str) -> None:
    history: list[Any] = [{"role": "user", "content": "Tell me about Paris. " * 40}]
    for _ in range(2):
        response = client.chat.completions.with_raw_response.create(
            model=model, messages=history, temperature=0, max_tokens=60
        )
        answer = response.parse()
        history += [answer.choices[0].message.model_dump(include={"role", "content"})]
        history += [{"role": "user", "content": "Go on."}]
    assert response.headers["x-baton-path"] == "D"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens or 0
    assert answer.usage.prompt_tokens - cached < 100
    engine = service.metric("vllm:prompt_tokens_by_source_total", deployment="decode", source="external_kv_transfer")
    assert engine == service.prompt_tokens("decode")["pulled"]


def test_every_handoff_is_checked_and_agrees(service: Service, client: openai.OpenAI, model: str) -> None:
    before = service.metric("baton_verifications_total", result="agrees")
    several: list[dict[str, Any]] = [{}, {"temperature": 1.0}, {"stop": ["never said"]}, {"presence_penalty": 1.0}]
    for number, fields in enumerate(several):
        _greedy(client, model, _prompt(150, seed=40 + number), "P->D", **fields)
    assert service.metric("baton_verifications_total", result="agrees") == before + 4
    assert service.metric("baton_verifications_total", result="differs") == 0


def test_repeated_prompt_is_reported_as_cached(client: openai.OpenAI, model: str) -> None:
    prompt = _prompt(320, seed=2)
    usages = [
        client.completions.create(
            model=model, prompt=prompt, max_tokens=1, extra_headers={"x-baton-path": "P->D"}
        ).usage
        for _ in range(2)
    ]
    cached = [present(present(present(usage).prompt_tokens_details).cached_tokens) for usage in usages]
    assert cached[0] == 0
    assert 0 < cached[1] < 320
    assert all(present(usage).prompt_tokens == 320 for usage in usages)


@pytest.mark.parametrize("path", ["P->D", "D"])
def test_recall_needs_the_kv_of_the_whole_prompt(client: openai.OpenAI, model: str, path: str) -> None:
    right = 0
    for messages, code in recall_prompts(first_seed=0 if path == "D" else 1000):
        answer = client.chat.completions.create(
            model=model, messages=messages, temperature=0, max_tokens=32, extra_headers={"x-baton-path": path}
        )
        right += code in (answer.choices[0].message.content or "")
    assert right >= 0.9 * NUM_RECALL_PROMPTS


@pytest.mark.parametrize("path", ["P->D", "D"])
@pytest.mark.parametrize("length", [60, 150, LONGEST])
def test_answer_that_needs_each_block_of_the_prompt_is_right(
    service: Service, client: openai.OpenAI, model: str, path: str, length: int
) -> None:
    before = service.prompt_tokens("decode")
    words = word_list(seed=length + len(path), length=length)
    response = client.completions.with_raw_response.create(
        model=model,
        prompt=words.prompt,
        max_tokens=length,
        temperature=0,
        extra_body={"ignore_eos": True},
        extra_headers={"x-baton-path": path},
    )
    assert response.headers["x-baton-path"] == path
    assert response.parse().choices[0].text == words.answer(length)
    pulled = _gained(before, service.prompt_tokens("decode"))["pulled"]
    assert pulled == (length if path == "P->D" else 0)


def _prompt(length: int, seed: int) -> list[int]:
    """Token ids that share no prefix with another seed's."""
    return [300 + (seed * 7919 + i * i * 31 + i * 17) % 1000 for i in range(length)]


def _stranger(client: openai.OpenAI) -> openai.OpenAI:
    """A client whose prompts nobody finds in a cache, nor it those of others."""
    return client.with_options(api_key=fresh_key())


def _greedy(client: openai.OpenAI, model: str, prompt: list[int], path: str, **fields: Any) -> str:
    response = client.completions.with_raw_response.create(
        model=model,
        prompt=prompt,
        max_tokens=NUM_OUTPUT_TOKENS,
        extra_body={"ignore_eos": True},
        extra_headers={"x-baton-path": path},
        **{"temperature": 0, **fields},
    )
    assert response.headers["x-baton-path"] == path
    return response.parse().choices[0].text


def _gained(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {source: after[source] - before[source] for source in after}
