"""Rolling updates. Serve replaces every process of an application whose `args` have changed: each finishes first what
runs on it.
"""

import json

import httpx
import openai

from tests.real_cluster.service import DECODE_PROCESS, Service, wait_for

NUM_TOKENS = 600
UPDATED_WITHIN_S = 120.0


def test_update_cuts_no_stream_off(service: Service, client: openai.OpenAI, model: str) -> None:
    old = service.process(DECODE_PROCESS)
    # A stop string: this stream could not go on elsewhere
    body = {"model": model, "prompt": "Once", "stream": True, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    body |= {"stop": ["this is never said"], "stream_options": {"include_usage": True}}
    with (
        httpx.Client(base_url=service.url, timeout=60) as http,
        http.stream("POST", "/v1/completions", json=body, headers={"x-baton-path": "D"}) as response,
    ):
        frames = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
        next(frames)
        service.update({"decode": {"max_ongoing_requests": 300}})
        rest = list(frames)
    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-3])["choices"][0]["finish_reason"] == "length"
    assert json.loads(rest[-2])["usage"]["completion_tokens"] == NUM_TOKENS

    old.wait(timeout=UPDATED_WITHIN_S)
    wait_for(lambda: service.is_ready(), UPDATED_WITHIN_S, interval_s=0.5)
    assert service.process(DECODE_PROCESS) != old
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    wait_for(service.is_idle, timeout_s=40)
