"""Rolling updates. Serve replaces every process of an application whose `args` have changed: each finishes first what
runs on it.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import psutil

from tests.component.openai_objects import first_text_of
from tests.drills.traffic import Traffic
from tests.real_cluster.service import DECODE_PROCESS, INGRESS_PROCESS, Service, wait_for

NUM_TOKENS = 600
UPDATED_WITHIN_S = 120.0
USER = {"authorization": "Bearer unused"}
"""As the openai clients."""
# A stop string: these streams could not go on elsewhere
UNRESUMABLE = {"prompt": "Once", "stream": True, "max_tokens": NUM_TOKENS, "ignore_eos": True}
UNRESUMABLE |= {"stop": ["this is never said"], "stream_options": {"include_usage": True}}

Stream = tuple[float, float, list[str]]
"""When a stream began and ended, and its frames."""


def streams_until(gone: psutil.Process, url: str, model: str) -> list[Stream]:
    """One stream after the other, until a process has ended."""
    seen: list[Stream] = []
    with httpx.Client(base_url=url, timeout=UPDATED_WITHIN_S) as http:
        while gone.is_running():
            began_at = time.monotonic()
            with http.stream("POST", "/v1/completions", json={"model": model, **UNRESUMABLE}) as response:
                lines = list(response.iter_lines())
            frames = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
            seen.append((began_at, time.monotonic(), frames or lines))
    return seen


def test_update_cuts_no_stream_off_refuses_no_request_and_loses_no_turn(
    service: Service, client: openai.OpenAI, strict: openai.OpenAI, model: str
) -> None:
    old = service.process(DECODE_PROCESS), service.process(INGRESS_PROCESS)
    conversation = strict.conversations.create()
    turn = {"model": model, "conversation": conversation.id, "input": "Tell me about Paris", "stream": True}
    traffic = Traffic(lambda: service.host, service.port, seed=500)
    with (
        ThreadPoolExecutor() as pool,
        httpx.Client(base_url=service.url, timeout=60, headers=USER) as http,
        http.stream("POST", "/v1/responses", json=turn) as of_turn,
    ):
        streaming = pool.submit(streams_until, old[0], service.url, model)
        try:
            service.update({"decode": {"max_ongoing_requests": 300}})
            wait_for(lambda: "STOPPING" in worker_states(service), UPDATED_WITHIN_S, interval_s=0.1)
            stopping_at = time.monotonic()
            events = of_turn.read().decode()
            for process in old:
                process.wait(timeout=UPDATED_WITHIN_S)
            wait_for(lambda: service.is_ready(), UPDATED_WITHIN_S, interval_s=0.5)
        finally:
            traffic.stop()
        streams = streaming.result()
    for _, _, frames in streams:
        assert frames[-1] == "[DONE]", frames[-1]
        assert json.loads(frames[-3])["choices"][0]["finish_reason"] == "length"
        assert json.loads(frames[-2])["usage"]["completion_tokens"] == NUM_TOKENS
    assert any(began_at < stopping_at < ended_at for began_at, ended_at, _ in streams)
    assert set(traffic.outcomes) == {"answered"}, traffic.errors[:3]
    assert "response.completed" in events, events

    assert service.process(DECODE_PROCESS) != old[0]
    asked, answered = strict.conversations.items.list(conversation.id, order="asc")
    assert asked.type == answered.type == "message"
    assert first_text_of(asked) == "Tell me about Paris" and first_text_of(answered)
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    wait_for(service.is_idle, timeout_s=40)


def worker_states(service: Service) -> set[str]:
    """What Serve says of the decode workers."""
    return {state for (deployment, _), state in service.serve_says().items() if deployment == "DecodeWorker"}
