"""Processes that are killed: what the clients see of it, what the others still do for the dead, and the recovery."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.drills.processes import engine_core
from tests.drills.word_lists import LONGEST, WordList, word_list
from tests.real_cluster.fresh_key import bearer, fresh_key
from tests.real_cluster.service import (
    DECODE_PROCESS,
    INGRESS_PROCESS,
    PREFILL_PROCESS,
    SCHEDULER_PROCESS,
    Service,
    wait_for,
)

NUM_IN_FLIGHT = 16
"""Word lists, which take the prefill engine four steps, so that it has begun with some when it dies."""
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
ANSWERED_WITHIN_S = 5.0
"""Without the Scheduler: an ingress waits a second for it, and then chooses itself."""
MAX_TOKENS = 3000
"""Some twenty seconds of decoding on this machine: nothing that is asked for here ends by itself during a test."""


def test_killed_prefill_worker_costs_no_request(service: Service, client: openai.OpenAI, model: str) -> None:
    lists = [word_list(seed, LONGEST) for seed in range(NUM_IN_FLIGHT)]
    worker = service.process(PREFILL_PROCESS)
    engine = engine_core(worker)
    with ThreadPoolExecutor(NUM_IN_FLIGHT) as clients:
        engine.suspend()  # so that none of the prompts is computed before the worker is killed
        try:
            answers = [clients.submit(_continuation, client, model, words) for words in lists]
            wait_for(lambda: service.metric("baton_placed_requests", pool="prefill") == NUM_IN_FLIGHT, timeout_s=30)
        finally:
            worker.kill()
            engine.kill()
        paths = [_path_of_answer(client, model) for _ in range(5)]
        is_ready = service.get("/readyz").status_code

    wrong = [words for words, answer in zip(lists, answers, strict=True) if answer.result() != words.answer(LONGEST)]
    assert not wrong
    assert "D" in paths
    assert is_ready == 503
    service.wait_until_whole()
    assert _path_of_answer(client, model, "P->D") == "P->D"
    wait_for(service.is_idle, timeout_s=40)


def test_streams_of_a_killed_decode_worker_go_on_elsewhere_or_end_with_an_error(
    service: Service, client: openai.OpenAI, model: str
) -> None:
    with _long_stream(service, model, fresh_key(), temperature=0, max_tokens=400) as frames:
        undisturbed = _text(list(frames))
    with (
        _long_stream(service, model, stop=["this is never said"]) as bound,  # cannot be resumed
        _long_stream(service, model, fresh_key(), temperature=0, max_tokens=400) as frames,
    ):
        next(bound)
        first = [next(frames) for _ in range(20)]
        service.process(DECODE_PROCESS).kill()
        assert _text([*first, *frames]) == undisturbed
        last = list(bound)
    assert last[-1] == "[DONE]"
    assert json.loads(last[-2])["error"]["code"] == "worker_failed"
    assert _path_of_answer(client, model) in ("P", "P->D")
    service.wait_until_whole()
    assert _path_of_answer(client, model, "P->D") == "P->D"
    wait_for(service.is_idle, timeout_s=40)


def test_killed_scheduler_costs_no_request_and_its_streams_go_on(
    service: Service, client: openai.OpenAI, model: str
) -> None:
    with _long_stream(service, model) as frames:
        next(frames)
        service.process(SCHEDULER_PROCESS).kill()
        asked_at = time.monotonic()
        assert _path_of_answer(client, model)  # on any path: a Scheduler that has just come back may choose P
        assert time.monotonic() - asked_at < ANSWERED_WITHIN_S
        assert len([next(frames) for _ in range(100)]) == 100
    service.wait_until_whole()
    assert _path_of_answer(client, model, "P->D") == "P->D"
    wait_for(service.is_idle, timeout_s=40)


def test_requests_of_a_killed_ingress_are_aborted_on_the_workers_at_once(
    service: Service, client: openai.OpenAI, model: str
) -> None:
    generated = service.metric("vllm:generation_tokens_total", deployment="decode")
    with _long_stream(service, model) as frames:
        for _ in range(20):
            next(frames)
        released = service.metric("vllm:generation_tokens_total", deployment="decode") - generated
        service.process(INGRESS_PROCESS).kill()
        with pytest.raises(httpx.TransportError):
            list(frames)
    service.wait_until_whole()
    generated = service.metric("vllm:generation_tokens_total", deployment="decode") - generated
    assert released <= generated < MAX_TOKENS / 4
    assert service.is_idle()
    assert _path_of_answer(client, model, "P->D") == "P->D"


@contextmanager
def _long_stream(service: Service, model: str, key: str | None = None, **fields: object) -> Iterator[Iterator[str]]:
    body = {"model": model, "prompt": "Once", "stream": True, "max_tokens": MAX_TOKENS, "ignore_eos": True, **fields}
    headers = bearer(key) if key else {}
    with (
        httpx.Client(base_url=service.url, headers=headers, timeout=30) as http,
        http.stream("POST", "/v1/completions", json=body) as response,
    ):
        yield (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))


def _text(frames: list[str]) -> str:
    assert frames[-1] == "[DONE]"
    return "".join(json.loads(frame)["choices"][0]["text"] for frame in frames[:-1])


def _path_of_answer(client: openai.OpenAI, model: str, path: str | None = None) -> str:
    """`path`: it must run there."""
    response = client.chat.completions.with_raw_response.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=20,
        extra_headers={"x-baton-path": path} if path else {},
    )
    assert "Paris" in (response.parse().choices[0].message.content or "")
    return response.headers["x-baton-path"]


def _continuation(client: openai.OpenAI, model: str, words: WordList) -> str:
    """As long as the prompt, so that it needs each of its KV blocks."""
    answer = client.completions.create(
        model=model,
        prompt=words.prompt,
        max_tokens=LONGEST,
        temperature=0,
        extra_body={"ignore_eos": True},
        extra_headers={"x-baton-path": "P->D"},
    )
    return answer.choices[0].text
