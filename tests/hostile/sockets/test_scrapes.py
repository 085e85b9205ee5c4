"""Many who read the metrics cost the cluster as much as one, and a deployment that is missing is seen."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from ray.serve.exceptions import RayServeException

from api.server.cluster_handle import metrics_page_of
from cluster.rpc.shared_answer import SharedAnswer
from tests.unit.scrapes import a_scrape

MAX_AGE_S = 0.05
TOKENS = "baton_output_tokens_total"


class Question:
    """Counts how often it is asked; answers when the test says so."""

    def __init__(self) -> None:
        self.num_asked = self.num_at_once = self.most_at_once = 0
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def ask(self) -> int:
        self.num_asked += 1
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await self.may_answer.wait()
        self.num_at_once -= 1
        if self.error is not None:
            raise self.error
        return self.num_asked


async def test_thousand_who_ask_at_once_cost_one_question() -> None:
    question = Question()
    shared = SharedAnswer(question.ask, MAX_AGE_S)
    asking = [asyncio.ensure_future(shared.get()) for _ in range(1000)]
    await asyncio.sleep(0)
    question.may_answer.set()
    assert await asyncio.gather(*asking) == [1] * 1000
    assert question.num_asked == 1


async def test_answer_is_given_again_for_a_while_and_then_made_anew() -> None:
    question = Question()
    question.may_answer.set()
    shared = SharedAnswer(question.ask, MAX_AGE_S)
    assert [await shared.get() for _ in range(100)] == [1] * 100
    async with asyncio.timeout(5):
        while await shared.get() == 1:
            pass
    assert question.most_at_once == 1


async def test_who_gives_up_does_not_take_the_answer_from_the_others() -> None:
    question = Question()
    shared = SharedAnswer(question.ask, MAX_AGE_S)
    first, second = [asyncio.ensure_future(shared.get()) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    question.may_answer.set()
    assert await second == 1


async def test_error_goes_to_those_who_waited_for_it_and_to_nobody_else() -> None:
    question = Question()
    question.error = ValueError("no")
    question.may_answer.set()
    shared = SharedAnswer(question.ask, MAX_AGE_S)
    for answer in await asyncio.gather(shared.get(), shared.get(), return_exceptions=True):
        assert isinstance(answer, ValueError)
    question.error = None
    assert await shared.get() == 2


class Broadcast:
    def __init__(self, answer: Awaitable[list[Any]]) -> None:
        self._answer = answer

    async def results_async(self, *, timeout_s: float, return_exceptions: bool) -> list[Any]:
        return await self._answer


class Deployment:
    """As a Serve handle shows it. An exception in place of answers: the broadcast as a whole fails."""

    def __init__(self, name: str, answers: list[Any] | Exception) -> None:
        self.deployment_name = name
        self._answers = answers

    def broadcast(self, method: str, *arguments: object) -> Broadcast:
        return Broadcast(self._answered())

    async def _answered(self) -> list[Any]:
        if isinstance(self._answers, Exception):
            raise self._answers
        return self._answers


@pytest.mark.parametrize("failure", [TimeoutError(), RayServeException("gone")])
async def test_deployment_that_does_not_answer_does_not_vanish_silently(
    failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    page = await metrics_page_of(
        [
            Deployment("Ingress", [a_scrape("ingress", "a", TOKENS, 1.0)]),
            Deployment("PrefillWorker", failure),
            Deployment("DecodeWorker", [a_scrape("decode", "b", TOKENS, 1.0), OSError("dead"), OSError("dead")]),
        ]
    )
    missing = [line for line in page.decode().splitlines() if line.startswith("baton_scrape_missing{")]
    assert missing == [
        'baton_scrape_missing{deployment="Ingress"} 0.0',
        'baton_scrape_missing{deployment="PrefillWorker"} 1.0',
        'baton_scrape_missing{deployment="DecodeWorker"} 2.0',
    ]
    assert page.count(b"baton_output_tokens_total{") == 2
    assert "1 replicas of PrefillWorker gave no metrics" in caplog.text
