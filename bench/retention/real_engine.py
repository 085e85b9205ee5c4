"""Agents beside chats on a real engine, with and without retention, at equal memory and in turns.

    make bench-retention-engine

Two engines with the demo model and the same KV memory take turns. One keeps the blocks of conversations that are likely
to go on soon, the other one has vLLM's own order (LRU). Both are told of tool calls. In each turn the same tasks of
agents, whose prompts grow, and the same chats begin at fixed times, however fast the engine answers. The agents' gaps
are drawn from what is published, up to MOST_GAP_S, or are those of slow tools (`--gap`). What is still under way when a
turn ends goes on to its end.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from statistics import fmean
from typing import Any

import msgspec
import yaml
from prometheus_client import REGISTRY
from vllm.sampling_params import SamplingParams

from cluster.config.application import parse
from cluster.engine.block_hashes import BlockHasher
from cluster.engine.engine import Engine
from cluster.engine.port import EngineHooks
from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import Pool, RequestId, WorkerId
from cluster.messages.retention import ToolWait
from cluster.network.interface import Interface
from cluster.network.secret import establish_secret
from cluster.repository import REPO_ROOT
from cluster.simulation.results.summary import aligned, quantile
from cluster.simulation.traffic.agent_tasks import AgentTasks
from cluster.step_stream.buffer import TokenBuffer

CONFIG = parse(yaml.safe_load((REPO_ROOT / "conf/local.yaml").read_text())["applications"][0]["args"])
KV_MIB = 40
"""KV memory of an engine. More has room for all agents and chats; less has none for the agents alone."""
TASKS_PER_S, NUM_STEPS = 0.1, 8
FIRST_TOKENS, RESULT_TOKENS, ANSWER_TOKENS = 1_200, 250, 16
CHATS_PER_S, CHAT_TOKENS = 1.5, 480
"""Rates at which tasks and chats begin. Higher queues more on a slow machine; lower evicts less."""
MOST_GAP_S = 10.0
KEPT_SHARE = 0.5
"""Share of the KV memory of the engine that keeps blocks."""
VOCABULARY = range(300, 1300)


class Load(msgspec.Struct, frozen=True):
    kv_mib: int
    chats_per_s: float
    gap_s: float | None
    """Mean time of a tool. None draws it from what is published."""

    def draw_gap_s(self, rng: random.Random) -> float:
        if self.gap_s is not None:
            return self.gap_s * rng.uniform(0.5, 1.5)
        return min(AgentTasks(tasks_per_s=TASKS_PER_S).gaps_s.draw(rng), MOST_GAP_S)


class Answered(msgspec.Struct, frozen=True):
    ttft_s: float
    num_prompt: int
    num_hits: int
    tokens: list[int]


class BenchEngine:
    def __init__(self, name: str, kept_share: float, kv_mib: int) -> None:
        self.name = name
        pool = CONFIG.pool(CONFIG.decode)
        config = msgspec.structs.replace(
            pool, kept_share=kept_share, engine={**pool.engine, "kv_cache_memory_bytes": kv_mib << 20}
        )
        self._engine = Engine(
            Pool.DECODE, config, worker=WorkerId(name), rank=0, interface=Interface("127.0.0.1", "lo")
        )
        self._engine.attach(
            EngineHooks(on_prompt=lambda sources: None, on_step=lambda: None, on_ended_leases=lambda ended: None)
        )
        self._hasher = BlockHasher(CONFIG.block_size)
        self._num_requests = 0

    @property
    def capacity_tokens(self) -> int:
        return self._engine.shape.kv_capacity_tokens

    async def warm_up(self) -> None:
        await self._engine.warm_up()

    def shutdown(self) -> None:
        self._engine.shutdown()

    async def answer(self, prompt: list[int], salt: str) -> Answered:
        self._num_requests += 1
        params = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
        request = GenerateRequest(
            request_id=RequestId(f"{self.name}-{self._num_requests}"),
            prompt_token_ids=prompt,
            sampling_params=encode_sampling_params(params),
            cache_salt=salt,
        )
        buffer, tokens, num_hits = TokenBuffer(1), list[int](), 0
        began_at, first_at = time.monotonic(), 0.0
        await self._engine.generations.start(request, None, buffer)
        while deltas := await buffer.next():
            first_at = first_at or time.monotonic()
            for delta in deltas:
                tokens += delta.token_ids
                num_hits += delta.prompt_sources.local if delta.prompt_sources else 0
        return Answered(first_at - began_at, len(prompt), num_hits, tokens)

    async def await_tools(self, prompt: list[int], salt: str) -> None:
        hashes = await self._hasher.of_prompt(prompt, salt)
        await self._engine.await_tools(ToolWait(hashes[-1]))


class Turn:
    """What one turn of one engine has measured."""

    def __init__(self, engine: BenchEngine, load: Load, number: int, duration_s: float) -> None:
        self._engine = engine
        self._load = load
        self._number = number
        self._ends_at = time.monotonic() + duration_s
        self.steps: list[Answered] = []
        """All steps of tasks but the first of each."""
        self.chats: list[Answered] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as begun:
            begun.create_task(self._begin(begun, TASKS_PER_S, "task", self._task))
            begun.create_task(self._begin(begun, self._load.chats_per_s, "chat", self._chat))

    async def _begin(
        self,
        begun: asyncio.TaskGroup,
        per_s: float,
        name: str,
        what: Callable[[random.Random], Coroutine[Any, Any, None]],
    ) -> None:
        """Begin tasks or chats at random times of this rate, which are the same for both engines."""
        rng, number, at = random.Random(f"{name}s of {self._number}"), 0, time.monotonic()
        while at < self._ends_at:
            await asyncio.sleep(at - time.monotonic())
            begun.create_task(what(random.Random(f"{name} {number} of {self._number}")))
            number, at = number + 1, at + rng.expovariate(per_s)

    async def _task(self, rng: random.Random) -> None:
        prompt = words(rng, FIRST_TOKENS)
        for step in range(NUM_STEPS):
            answered = await self._engine.answer(prompt, "agents")
            if step:
                self.steps.append(answered)
            if step == NUM_STEPS - 1 or self._is_over:
                return
            await self._engine.await_tools(prompt, "agents")
            await asyncio.sleep(self._load.draw_gap_s(rng))
            prompt = prompt + answered.tokens + words(rng, RESULT_TOKENS)

    async def _chat(self, rng: random.Random) -> None:
        self.chats.append(await self._engine.answer(words(rng, CHAT_TOKENS), "chats"))

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends_at


def words(rng: random.Random, number: int) -> list[int]:
    return rng.choices(VOCABULARY, k=number)


async def measure(load: Load, num_rounds: int, duration_s: float) -> list[tuple[str, Turn]]:
    establish_secret(lambda proposed: proposed)
    engines = [BenchEngine("LRU", 0.0, load.kv_mib), BenchEngine("retention", KEPT_SHARE, load.kv_mib)]
    turns: list[tuple[str, Turn]] = []
    for engine in engines:
        await engine.warm_up()
        await Turn(engine, load, -1, 5.0).run()
    print(f"{engines[0].capacity_tokens} tokens of KV memory in each engine", flush=True)
    for number in range(num_rounds):
        for engine in engines if number % 2 == 0 else reversed(engines):
            turn = Turn(engine, load, number, duration_s)
            await turn.run()
            turns.append((engine.name, turn))
            print(aligned([HEADING, row(f"{engine.name} {number}", [turn])]), flush=True)
    for outcome in ("returned", "expired", "dropped", "late"):
        labels = {"pool": Pool.DECODE.value, "outcome": outcome}
        print(f"{outcome}: {REGISTRY.get_sample_value('baton_kept_conversations_total', labels) or 0:.0f}")
    for engine in engines:
        engine.shutdown()
    return turns


HEADING = ["", "steps", "hits", "TTFT p50", "p95", "mean ms", "chats", "TTFT p50", "p95 ms"]


def row(name: str, turns: Sequence[Turn]) -> list[str]:
    steps = [step for turn in turns for step in turn.steps]
    chats = [chat for turn in turns for chat in turn.chats]
    hits = sum(step.num_hits for step in steps) / max(1, sum(step.num_prompt for step in steps))
    ttfts, of_chats = (sorted(1e3 * one.ttft_s for one in each) or [0.0] for each in (steps, chats))
    return [
        name,
        f"{len(steps)}",
        f"{100 * hits:.1f}%",
        *(f"{quantile(ttfts, p):.0f}" for p in (0.5, 0.95)),
        f"{fmean(ttfts):.0f}",
        f"{len(chats)}",
        *(f"{quantile(of_chats, p):.0f}" for p in (0.5, 0.95)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="turns of each engine")
    parser.add_argument("--seconds", type=float, default=40.0, help="length of a turn")
    parser.add_argument("--kv", type=int, default=KV_MIB, help="KV memory of each engine, in MiB")
    parser.add_argument("--chats", type=float, default=CHATS_PER_S, help="chats that begin per second")
    parser.add_argument("--gap", type=float, help="mean time of a tool in seconds, instead of the published times")
    options = parser.parse_args(arguments)
    load = Load(options.kv, options.chats, options.gap)
    turns = asyncio.run(measure(load, options.rounds, options.seconds))
    names = dict.fromkeys(name for name, _ in turns)
    print(aligned([HEADING, *(row(name, [turn for each, turn in turns if each == name]) for name in names)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
