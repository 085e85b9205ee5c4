"""A handoff that does not come: the network between the engines is cut, or the prefill worker hangs. `make drills` has
these and other faults at every moment of a request.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import openai
import psutil
import pytest

from tests.drills.network import cut
from tests.drills.processes import engine_core
from tests.drills.word_lists import word_list
from tests.real_cluster.fresh_key import fresh_key
from tests.real_cluster.service import PREFILL_PROCESS, Service, wait_for

NUM_TOKENS = 150
ANSWERED_WITHIN_S = 60.0
BACK_WITHIN_S = 60.0


def path_cut(prefill: psutil.Process) -> AbstractContextManager[None]:
    return cut(engine_core(prefill))


@contextmanager
def prefill_hangs(prefill: psutil.Process) -> Iterator[None]:
    processes = [prefill, engine_core(prefill)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@pytest.mark.parametrize("fault", [path_cut, prefill_hangs])
def test_request_is_answered_without_its_handoff_and_handoffs_come_back(
    service: Service,
    client: openai.OpenAI,
    model: str,
    fault: Callable[[psutil.Process], AbstractContextManager[None]],
) -> None:
    pulled = service.prompt_tokens("decode")["pulled"]
    handed_over(client, model, 41)
    assert service.prompt_tokens("decode")["pulled"] > pulled
    with fault(service.process(PREFILL_PROCESS)):
        handed_over(client, model, 42)
    service.wait_until_whole()

    def is_back() -> bool:
        before = service.prompt_tokens("decode")["pulled"]
        handed_over(client, model, 43)
        return service.prompt_tokens("decode")["pulled"] > before

    wait_for(is_back, BACK_WITHIN_S)
    wait_for(service.is_idle, BACK_WITHIN_S)


def handed_over(client: openai.OpenAI, model: str, seed: int) -> None:
    """A request that is to take both engines gets the right answer, which needs each KV block of the prompt."""
    words = word_list(seed, NUM_TOKENS)
    answer = client.with_options(api_key=fresh_key(), timeout=ANSWERED_WITHIN_S).completions.create(
        model=model,
        prompt=words.prompt,
        max_tokens=NUM_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True},
        extra_headers={"x-baton-path": "P->D"},
    )
    assert answer.choices[0].text == words.answer(NUM_TOKENS)
