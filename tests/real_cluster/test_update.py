"""Rolling updates. Serve replaces every process of an application whose `args` have changed: each finishes first what
runs on it.
"""

import json

import httpx
import openai

from tests.component.openai_objects import first_text_of
from tests.drills.traffic import Traffic
from tests.real_cluster.service import DECODE_PROCESS, INGRESS_PROCESS, Service, wait_for

NUM_TOKENS = 600
USER = {"authorization": "Bearer unused"}
"""As the openai clients."""
UPDATED_WITHIN_S = 120.0


def test_update_cuts_no_stream_off_refuses_no_request_and_loses_no_turn(
    service: Service, client: openai.OpenAI, strict: openai.OpenAI, model: str
) -> None:
    old = service.process(DECODE_PROCESS), service.process(INGRESS_PROCESS)
    conversation = strict.conversations.create()
    # A stop string: this stream could not go on elsewhere
    body = {"model": model, "prompt": "Once", "stream": True, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    body |= {"stop": ["this is never said"], "stream_options": {"include_usage": True}}
    turn = {"model": model, "conversation": conversation.id, "input": "Tell me about Paris", "stream": True}
    with (
        httpx.Client(base_url=service.url, timeout=60, headers=USER) as http,
        http.stream("POST", "/v1/completions", json=body, headers={"x-baton-path": "D"}) as response,
        http.stream("POST", "/v1/responses", json=turn) as of_turn,
    ):
        frames = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
        next(frames)
        traffic = Traffic(lambda: service.host, service.port, seed=500)
        try:
            service.update({"decode": {"max_ongoing_requests": 300}})
            rest = list(frames)
            events = of_turn.read().decode()
            for process in old:
                process.wait(timeout=UPDATED_WITHIN_S)
            wait_for(lambda: service.is_ready(), UPDATED_WITHIN_S, interval_s=0.5)
        finally:
            traffic.stop()
    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-3])["choices"][0]["finish_reason"] == "length"
    assert json.loads(rest[-2])["usage"]["completion_tokens"] == NUM_TOKENS
    assert "response.completed" in events, events
    assert set(traffic.outcomes) == {"answered"}, traffic.errors[:3]

    assert service.process(DECODE_PROCESS) != old[0]
    asked, answered = strict.conversations.items.list(conversation.id, order="asc")
    assert asked.type == answered.type == "message"
    assert first_text_of(asked) == "Tell me about Paris" and first_text_of(answered)
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    wait_for(service.is_idle, timeout_s=40)
