"""Agents beside chats on a system that speaks HTTP: one process, OpenAI's client.

Tasks begin at random times, whatever has become of the earlier ones. Each step of a task comes some time after the
answer to the step before, which called a tool. So every system is asked the same, but for the answers in the prompts.
"""

import asyncio
import random
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import openai
import uvloop
from openai.types.chat import ChatCompletionChunk
from openai.types.chat import ChatCompletionMessageFunctionToolCallParam as ToolCall
from tokenizers import Tokenizer

from bench.fronts.load import obey
from bench.fronts.prompts import text
from bench.live.front_router import FrontRouter
from bench.retention.agent_figures import AgentLoad, Asked
from cluster.simulation.traffic.agent_tasks import AgentTasks

LIMIT_S = 120.0
"""Seconds without a byte after which a request fails, and the benchmark with it. Higher lets a system that hangs hold
it up longer.
"""
MOST_TRIES = 6
"""How often a refused request is sent, each time after the wait that its refusal names. Its TTFT has the waits."""
TOOL = "read"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "Read a file.",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "enum": ["a.py", "b.py", "c.py"]}},
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    }
]
NUM_KINDS = 2
"""Agent programs. The tasks of one begin with the same instructions."""
MOST_CALL_TOKENS = 64
"""Of an answer that calls the tool. Its schema ends it much sooner."""


class AgentLoop:
    """The calls for an `AgentLoad`."""

    def __init__(self, model: str) -> None:
        """`model`: its folder, after which it is served."""
        self._model = Path(model).name
        self._biases = dict.fromkeys(blank_tokens(model), -100)
        self._asked: dict[tuple[str, int, int], Asked] = {}

    async def prepare(self, load: AgentLoad) -> None:
        self._load = load
        self._router = FrontRouter(load.ports, is_sticky=load.is_sticky)
        self._clients = {
            port: openai.AsyncOpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=LIMIT_S
            )
            for port in load.ports
        }
        self._asked = {}

    async def run(self) -> float:
        """Seconds that it took. Ends when the tasks that have begun are done."""
        started_at = time.monotonic()
        try:
            async with asyncio.TaskGroup() as begun:
                for number, at_s in enumerate(self._arrivals_s("tasks", self._load.tasks_per_s)):
                    begun.create_task(self._task(started_at + at_s, number))
                for number, at_s in enumerate(self._arrivals_s("chats", self._load.chats_per_s)):
                    begun.create_task(self._chat(started_at + at_s, number))
        except* (openai.OpenAIError, httpx.HTTPError, RuntimeError) as failed:
            raise RuntimeError(f"a request failed: {failed.exceptions[0]!r}") from failed
        finally:
            for client in self._clients.values():
                await client.close()
        return time.monotonic() - started_at

    async def collect(self) -> list[Asked]:
        """In an order that is the same for every system."""
        return [self._asked[place] for place in sorted(self._asked)]

    def _arrivals_s(self, what: str, per_s: float) -> Iterator[float]:
        rng, at_s = random.Random(f"{what} of {self._load.seed}"), 0.0
        while (at_s := at_s + rng.expovariate(per_s)) < self._load.duration_s:
            yield at_s

    async def _task(self, at: float, number: int) -> None:
        await asyncio.sleep(at - time.monotonic())
        rng = random.Random(f"task {number} of {self._load.seed}")
        kind = rng.randrange(NUM_KINDS)
        messages: list[Any] = [
            {"role": "system", "content": text(random.Random(f"instructions {kind}"), self._load.instruction_words)},
            {"role": "user", "content": text(rng, self._load.question_words)},
        ]
        for step in range(self._load.num_steps):
            call = await self._ask(("task", number, step), f"task {number}", messages, is_agent=True)
            gap_s = self._gap_s(rng)
            result = text(rng, self._load.result_words)
            if step < self._load.num_steps - 1:
                await asyncio.sleep(gap_s)
            messages = [
                *messages,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": result},
            ]

    async def _chat(self, at: float, number: int) -> None:
        await asyncio.sleep(at - time.monotonic())
        rng = random.Random(f"chat {number} of {self._load.seed}")
        messages = [{"role": "user", "content": text(rng, self._load.chat_words)}]
        await self._ask(("chat", number, 0), f"chat {number}", messages, is_agent=False)

    async def _ask(
        self, place: tuple[str, int, int], conversation: str, messages: Sequence[Any], *, is_agent: bool
    ) -> ToolCall:
        port = self._router.opened(conversation)
        try:
            began_at, first_at, last_at, usage = time.monotonic(), 0.0, 0.0, None
            call: Any = {"id": "", "type": "function", "function": {"name": TOOL, "arguments": ""}}
            num_tries, stream = await self._accepted(port, messages, is_agent=is_agent)
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    last_at = time.monotonic()
                    first_at = first_at or last_at
                    for part in choice.delta.tool_calls or ():
                        call["id"] = part.id or call["id"]
                        if part.function:
                            call["function"]["arguments"] += part.function.arguments or ""
        finally:
            self._router.closed(port)
        if not usage or not first_at or (is_agent and not call["function"]["arguments"].endswith("}")):
            raise RuntimeError(f"no whole answer came: {call} {usage}")
        details = usage.prompt_tokens_details
        self._asked[place] = Asked(
            is_agent=is_agent,
            step=place[2],
            ttft_s=first_at - began_at,
            tpot_s=(last_at - first_at) / max(1, usage.completion_tokens - 1),
            num_prompt=usage.prompt_tokens,
            num_hits=(details and details.cached_tokens) or 0,
            num_tries=num_tries,
        )
        return call

    async def _accepted(
        self, port: int, messages: Sequence[Any], *, is_agent: bool
    ) -> tuple[int, openai.AsyncStream[ChatCompletionChunk]]:
        """How often the request was sent until it was not refused, and its answer."""
        for number in range(1, MOST_TRIES + 1):
            try:
                return number, await self._clients[port].chat.completions.create(
                    model=self._model,
                    messages=list(messages),
                    stream=True,
                    stream_options={"include_usage": True},
                    temperature=0.0,
                    **(self._agent_fields() if is_agent else self._chat_fields()),
                )
            except openai.APIStatusError as error:
                retry_after_s = error.response.headers.get("retry-after")
                if number == MOST_TRIES or retry_after_s is None:
                    raise
                await asyncio.sleep(float(retry_after_s))
        raise AssertionError("the last try returns or raises")

    def _agent_fields(self) -> dict[str, Any]:
        choice = {"type": "function", "function": {"name": TOOL}}
        return {"tools": TOOLS, "tool_choice": choice, "max_tokens": MOST_CALL_TOKENS, "logit_bias": self._biases}

    def _chat_fields(self) -> dict[str, Any]:
        return {"max_tokens": self._load.chat_output_tokens, "extra_body": {"ignore_eos": True}}

    def _gap_s(self, rng: random.Random) -> float:
        if self._load.gap_s is not None:
            return self._load.gap_s * rng.uniform(0.5, 1.5)
        return min(AgentTasks(tasks_per_s=1.0).gaps_s.draw(rng), self._load.most_gap_s)


def blank_tokens(model: str) -> list[int]:
    """Tokens of white space, which a model with random weights would put into its calls without end."""
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    return [number for number in range(tokenizer.get_vocab_size()) if not tokenizer.decode([number]).strip()]


def main() -> None:
    descriptor, model = sys.argv[1:]
    uvloop.run(obey(Connection(int(descriptor)), AgentLoop(model)))


if __name__ == "__main__":
    main()
