"""A prefill worker dies: the request in flight and the next ones are answered, and the worker comes back."""

import threading

import openai

from tests.cluster.service import PREFILL_PROCESS, Service, wait_for

RECOVERED_WITHIN_S = 120.0
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_killed_prefill_worker_costs_no_request(service: Service, client: openai.OpenAI, model: str) -> None:
    answers: list[str] = []
    in_flight = threading.Thread(target=lambda: answers.append(_long_prompt_answer(client, model)))
    worker = service.worker_process(PREFILL_PROCESS)
    in_flight.start()
    worker.kill()
    paths = [_path_of_answer(client, model) for _ in range(5)]
    in_flight.join(timeout=60)

    assert len(answers) == 1
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


def _long_prompt_answer(client: openai.OpenAI, model: str) -> str:
    prompt = [300 + (i * i * 37) % 1000 for i in range(3800)]
    return client.completions.create(model=model, prompt=prompt, max_tokens=8).choices[0].text
