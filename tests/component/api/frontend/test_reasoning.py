"""Tokens of the reasoning: the ledger has as many as the client is told, whatever becomes of the answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser

from api.charging.charging import Charging
from api.metering.meter import Meter
from cluster.config.tenants.limits import LimitsConfig
from cluster.errors import WorkerUnreachable
from cluster.messages.generation import FinishReason
from tests.component.api.frontend.test_frontend import chunks
from tests.component.app_with_fakes import CHAT, COMPLETION, FakeCluster, a_client, an_app
from tests.component.fake_engines import FakeEngines
from tests.unit.api.charging.test_charge import PRICES, FakeRecorder, FakeReservations
from tests.unit.fake_ports import FakeObserver

THOUGHT = "<think>I think of it, and of it again.</think>Paris is nice."
PROMPTS = {
    "the template opens the thought": "{{ messages[0].content }}<think>\n",
    "the template closes the thought": "{{ messages[0].content }}<think>\n\n</think>\n\n",
    "the template has no thought": "{{ messages[0].content }}",
}

pytestmark = pytest.mark.filterwarnings(
    "ignore:max_tokens is deprecated:DeprecationWarning"
)  # vLLM reads its own field


class Reasoner(NamedTuple):
    client: httpx.AsyncClient
    engines: FakeEngines
    recorder: FakeRecorder

    async def ask(self, **fields: Any) -> httpx.Response:
        body = {"model": "baton-demo", "messages": [{"role": "user", "content": "Where is Paris?"}]}
        answer = await self.client.post(CHAT, json=body | fields)
        assert answer.status_code == 200, answer.text
        return answer

    async def told(self, *, stream: bool, **fields: Any) -> dict[str, Any]:
        """The usage that the client is told."""
        if not stream:
            return (await self.ask(**fields)).json()["usage"]
        return chunks(await self.ask(stream=True, stream_options={"include_usage": True}, **fields))[-1]["usage"]

    async def charged(self) -> list[tuple[int, int]]:
        """The generated tokens and the tokens of the reasoning of each row. Rows are made after the last byte."""
        recorder = self.recorder
        opened, ended = recorder.openings, recorder.rows
        while not opened or {one.id for one in opened} - {row.id for row in ended}:  # noqa: ASYNC110  # nobody is told
            await asyncio.sleep(0)
        return [(row.generated_tokens, row.reasoning_tokens) for row in recorder.rows]


@asynccontextmanager
async def reasoner(**ingress: Any) -> AsyncIterator[Reasoner]:
    engines, recorder = FakeEngines(), FakeRecorder()
    meter = Meter(recorder, PRICES, "i0", FakeObserver())
    charging = Charging(
        LimitsConfig(),
        "baton-demo",
        meter=meter,
        recorder=recorder,
        reserver=FakeReservations(),
        hashed=str,
    )
    frontend = await engines.frontend(512, **ingress)
    try:
        async with a_client(an_app(frontend, FakeCluster(), charging=charging)) as client:
            yield Reasoner(client, engines, recorder)
    finally:
        await frontend.close()


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_ledger_has_as_many_tokens_as_the_client_is_told(prompt: str, stream: bool) -> None:
    async with reasoner(reasoning_parser="qwen3", chat_template=PROMPTS[prompt]) as model:
        for said in (THOUGHT, "I think so.</think>Paris is nice.", "Paris is nice."):
            model.engines.says(said)
            for num_sequences in (1, 2):
                usage = await model.told(stream=stream, n=num_sequences)
                told = usage["completion_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]
                assert (await model.charged())[-1] == told


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_parser_that_reads_tokens_counts_alike(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tokens of the demo model in place of those of the thought."""
    monkeypatch.setattr(DeepSeekR1ReasoningParser, "start_token", "<tool_call>")
    monkeypatch.setattr(DeepSeekR1ReasoningParser, "end_token", "</tool_call>")
    async with reasoner(reasoning_parser="deepseek_r1") as model:
        model.engines.says("<tool_call>I think so.</tool_call>Paris is nice.")
        num_thought = len(model.engines.tokenizer.encode("I think so.").ids)
        for num_sequences in (1, 2):
            usage = await model.told(stream=stream, n=num_sequences)
            told = usage["completion_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]
            assert (await model.charged())[-1] == told
            assert told[1] == num_sequences * num_thought


async def test_reasoning_is_a_part_of_the_answer_and_has_its_price() -> None:
    async with reasoner(reasoning_parser="qwen3") as model:
        model.engines.says(THOUGHT)
        await model.ask()
        await model.charged()
        (row,) = model.recorder.rows
        assert 0 < row.reasoning_tokens < row.generated_tokens
        assert row.cost_micros == row.prompt_tokens + 2 * row.generated_tokens + row.reasoning_tokens


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_answer_that_is_cut_has_the_reasoning_until_then(stream: bool) -> None:
    async with reasoner(reasoning_parser="qwen3") as model:
        model.engines.says("<think>I think of it, and", FinishReason.LENGTH)
        num_marker = len(model.engines.tokenizer.encode("<think>").ids)
        model.engines.error = WorkerUnreachable("gone", "d0")
        del model.engines.deltas[-1]
        body = {"model": "baton-demo", "messages": [{"role": "user", "content": "Where is Paris?"}], "stream": stream}
        await model.client.post(CHAT, json=body)
        num_given = len(model.engines.deltas)
        assert await model.charged() == [(num_given, num_given - num_marker)]


async def test_without_a_parser_nothing_is_reasoning() -> None:
    async with reasoner() as model:
        model.engines.says(THOUGHT)
        await model.ask()
        await model.client.post(COMPLETION, json={"model": "baton-demo", "prompt": "Paris"})
        assert [reasoning for _, reasoning in await model.charged()] == [0, 0]


async def test_completion_of_a_text_has_no_reasoning() -> None:
    async with reasoner(reasoning_parser="qwen3") as model:
        model.engines.says(THOUGHT)
        await model.client.post(COMPLETION, json={"model": "baton-demo", "prompt": "Paris"})
        assert [reasoning for _, reasoning in await model.charged()] == [0]
