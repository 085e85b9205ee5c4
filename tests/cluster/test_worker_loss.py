"""A prefill worker dies: the request in flight and the next ones are answered, and the worker comes back."""

import threading

import openai

from tests.cluster.service import PREFILL_PROCESS, Service, wait_for

RECOVERED_WITHIN_S = 120.0
NUM_IN_FLIGHT = 6
"""Long prompts, so that some are in the prefill engine when it dies."""
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_killed_prefill_worker_costs_no_request(service: Service, client: openai.OpenAI, model: str) -> None:
    answers: list[str] = []
    in_flight = [
        threading.Thread(target=lambda seed=seed: answers.append(_long_prompt_answer(client, model, seed)))
        for seed in range(NUM_IN_FLIGHT)
    ]
    worker = service.worker_process(PREFILL_PROCESS)
    for thread in in_flight:
        thread.start()
    wait_for(lambda: service.metric("vllm:num_requests_running", deployment="prefill") > 0, timeout_s=10)
    worker.kill()
    paths = [_path_of_answer(client, model) for _ in range(5)]
    for thread in in_flight:
        thread.join(timeout=60)

    assert len(answers) == NUM_IN_FLIGHT
    assert "D" in paths
    assert service.get("/readyz").status_code == 503
    wait_for(lambda: service.get("/readyz").status_code == 200, RECOVERED_WITHIN_S, interval_s=1)
    assert _path_of_answer(client, model) == "P->D"
    wait_for(service.is_idle, timeout_s=40)


def _path_of_answer(client: openai.OpenAI, model: str) -> str:
    response = client.chat.completions.with_raw_response.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=20
    )
    assert "Paris" in (response.parse().choices[0].message.content or "")
    return response.headers["x-baton-path"]


def _long_prompt_answer(client: openai.OpenAI, model: str, seed: int) -> str:
    prompt = [300 + (seed * 7919 + i * i * 37) % 1000 for i in range(3800)]
    return client.completions.create(model=model, prompt=prompt, max_tokens=8).choices[0].text
