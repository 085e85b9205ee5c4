"""A prefill and a decode engine without the workers around them, and handoffs that no worker would allow. A program:
vLLM spawns its engine cores. Writes what it saw as JSON; tests/engines/test_lent_blocks.py says what that must be.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import REGISTRY
from vllm.sampling_params import SamplingParams

from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import Pool, RequestId, WorkerId
from cluster.step_stream.buffer import TokenBuffer
from kvtransfer import verify
from kvtransfer.handoff import KVHandoff, PulledBlocks
from kvtransfer.lease_terms import LeaseEnd, LeaseId
from kvtransfer.telemetry import Pull
from tests.engines.bare_engine import CONFIG, a_bare_engine

KV_BYTES = {Pool.PREFILL: 11 << 20, Pool.DECODE: 64 << 20}
"""The prefill engine has room for few prompts, so that freed blocks hold another one soon."""
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
LENGTH, NUM_OTHERS = 1500, 4
IN_TIME_S, TOO_LATE_S = 30.0, -1.0


class Ends:
    """How leases ended, on either engine."""

    def __init__(self) -> None:
        self._ends: dict[LeaseId, LeaseEnd] = {}
        self._changed = asyncio.Event()

    def take(self, ended: list[tuple[LeaseId, LeaseEnd]]) -> None:
        self._ends |= dict(ended)
        self._changed.set()

    async def of(self, lease: LeaseId) -> LeaseEnd:
        async with asyncio.timeout(60):
            while lease not in self._ends:
                self._changed.clear()
                await self._changed.wait()
        return self._ends[lease]


class BareEngine:
    def __init__(self, pool: Pool, ends: Ends) -> None:
        self._ends = ends
        config = CONFIG.pool(CONFIG.decode)
        config = msgspec.structs.replace(
            config, kv_lease_s=5, engine={**config.engine, "kv_cache_memory_bytes": KV_BYTES[pool]}
        )
        self.engine = a_bare_engine(pool, config, ends.take)
        self._num_requests = 0
        self.pull: Pull | None = None
        """Of the last answer."""

    def request(self, prompt: list[int], params: SamplingParams = PARAMS) -> GenerateRequest:
        self._num_requests += 1
        return GenerateRequest(
            request_id=RequestId(f"request-{self._num_requests}"),
            prompt_token_ids=prompt,
            sampling_params=encode_sampling_params(params),
            is_verified=True,
        )

    async def prefill(self, prompt: list[int]) -> tuple[KVHandoff, TokenDelta]:
        prefilled = await self.engine.prefills.prefill(self.request(prompt))
        assert prefilled is not None and prefilled[0].handoff is not None
        return prefilled[0].handoff, prefilled[0].first

    async def generate(
        self, prompt: list[int], handoff: KVHandoff | None = None, time_s: float = IN_TIME_S
    ) -> list[TokenDelta]:
        feed, deltas = TokenBuffer(1, received_at=time.monotonic()), list[TokenDelta]()
        request = self.request(prompt)
        await self.engine.generations.start(request, handoff, feed, time.monotonic() + time_s)
        while batch := await feed.next():
            if not deltas:
                self.pull = self.engine.generations.pull_of(request.request_id)
            deltas += batch
        return deltas

    async def long_answer(self, prompt: list[int], began: asyncio.Event) -> list[int]:
        """Set `began` with the first token."""
        feed, tokens = TokenBuffer(1), list[int]()
        await self.engine.generations.start(self.request(prompt, LONG), None, feed)
        while deltas := await feed.next():
            began.set()
            tokens += [token for delta in deltas for token in delta.token_ids]
        return tokens

    async def free(self, lease: LeaseId) -> float:
        """Seconds until the blocks are free."""
        began_at = time.monotonic()
        await self.engine.prefills.end_leases([lease])
        assert await self._ends.of(lease) is LeaseEnd.RELEASED
        return time.monotonic() - began_at


async def lives_of_a_handoff() -> dict[str, Any]:
    ends = Ends()
    prefill, decode = BareEngine(Pool.PREFILL, ends), BareEngine(Pool.DECODE, ends)
    steps: dict[str, Any] = {}
    right = seen(await decode.generate(prompt(0), None, IN_TIME_S), None)
    await decode.engine.forget_prefixes()

    handoff, first = await prefill.prefill(prompt(0))
    answer = await decode.generate(prompt(0), handoff, IN_TIME_S)
    steps["in time"] = seen(answer, first)
    timeline = {
        "prefill": first.stages,
        "decode": answer[0].stages,
        "pull": None if decode.pull is None else msgspec.structs.asdict(decode.pull),
        "steps": answer[-1].num_steps,
    }
    steps["in time"]["end"] = await ends.of(handoff.lease)

    freed_s = []
    for number in range(10):
        handoff, _ = await prefill.prefill(prompt(10 + number))
        freed_s.append(await prefill.free(handoff.lease))

    handoff, first = await prefill.prefill(prompt(0))
    await prefill.free(handoff.lease)
    for number in range(NUM_OTHERS):
        other, _ = await prefill.prefill(prompt(1 + number))
        await prefill.free(other.lease)
    await decode.engine.forget_prefixes()
    steps["of blocks that hold another prompt"] = seen(await decode.generate(prompt(0), handoff, IN_TIME_S), first)
    await decode.engine.forget_prefixes()
    steps["of such blocks, too late"] = seen(await decode.generate(prompt(0), handoff, TOO_LATE_S), first)
    steps["after it"] = seen(await decode.generate(prompt(0), None, IN_TIME_S), None)

    steps["wrong copy, forgotten"] = await a_wrong_copy(prefill, decode)
    forgotten = await two_lenders(prefill, decode)
    cleared = await a_prefill_worker_that_forgets(prefill, decode)

    handoff, _ = await prefill.prefill(prompt(30))
    kept = await prefill.engine.prefills.extend_leases([handoff.lease, LeaseId("unknown")], 1.0)
    unused_end = await ends.of(handoff.lease)
    usage = prefill.engine.load().kv_cache_usage
    prefill.engine.shutdown()
    decode.engine.shutdown()
    return {
        "right": right["tokens"],
        "timeline": msgspec.to_builtins(timeline),
        "steps": steps,
        "freed_s": sorted(freed_s),
        "kept": kept == [handoff.lease],
        "unused_end": unused_end,
        "usage": usage,
        "forgotten": forgotten,
        "cleared": cleared,
    }


async def a_wrong_copy(prefill: BareEngine, decode: BareEngine) -> dict[str, Any]:
    """Pull blocks that hold another prompt, forget this handoff, and ask for the prompt again."""
    handoff, _ = await prefill.prefill(prompt(0))
    await prefill.free(handoff.lease)
    for number in range(NUM_OTHERS):
        other, _ = await prefill.prefill(prompt(1 + number))
        await prefill.free(other.lease)
    await decode.engine.forget_prefixes()
    wrong = seen(await decode.generate(prompt(0), handoff), None)
    assert wrong["sources"]["pulled"] == LENGTH
    await decode.engine.forget(PulledBlocks(handoff.worker, handoff.lease))
    return seen(await decode.generate(prompt(0)), None)


async def two_lenders(prefill: BareEngine, decode: BareEngine) -> dict[str, Any]:
    """Prompts that were pulled from two workers, answers on top of them that are over and that run, and what is left
    after the decode engine forgets one of the workers. Both are the same engine here.
    """
    await decode.engine.forget_prefixes()
    texts: dict[str, list[int]] = {}
    leases: dict[str, LeaseId] = {}
    for name, seed in (("good", 40), ("bad", 41), ("bad, too", 42)):
        handoff, _ = await prefill.prefill(prompt(seed))
        handoff = msgspec.structs.replace(handoff, worker=WorkerId(name.partition(",")[0]))
        leases[name] = handoff.lease
        texts[name] = prompt(seed) + seen(await decode.generate(prompt(seed), handoff), None)["tokens"]
    for name in ("good", "bad"):  # the next turn, on top of what was pulled
        texts[f"{name}, next"] = texts[name] + prompt(50)[:100]
        await decode.generate(texts[f"{name}, next"])

    async def local_tokens() -> dict[str, int]:
        return {
            name: seen(await decode.generate(text), None)["sources"]["local"] for name, text in sorted(texts.items())
        }

    result: dict[str, Any] = {"cached": await local_tokens()}
    await decode.engine.forget(PulledBlocks(WorkerId("bad"), leases["bad, too"]))
    result["without one handoff"] = await local_tokens()

    right = {name: await decode.long_answer(texts[name], asyncio.Event()) for name in ("good", "bad")}
    began = {name: asyncio.Event() for name in right}
    answering = {name: asyncio.create_task(decode.long_answer(texts[name], began[name])) for name in right}
    for event in began.values():
        await event.wait()
    preempted = num_preemptions()
    await decode.engine.forget(PulledBlocks(WorkerId("bad")))
    result["answers"] = {name: await answer == right[name] for name, answer in answering.items()}
    result["preempted"] = num_preemptions() - preempted
    # The request that began anew has computed its own blocks since then.
    await decode.engine.forget(PulledBlocks(WorkerId("bad")))
    result["of the answer that began anew"] = seen(await decode.generate(texts["bad"]), None)["sources"]["local"]
    result["of the good lender"] = seen(await decode.generate(texts["good, next"]), None)["sources"]["local"]
    result["of the next turn"] = seen(await decode.generate(texts["bad, next"]), None)["sources"]["local"]
    return result


async def a_prefill_worker_that_forgets(prefill: BareEngine, decode: BareEngine) -> dict[str, Any]:
    """Everything is forgotten, while blocks are lent."""
    handoff, first = await prefill.prefill(prompt(60))
    began_at = time.monotonic()
    await prefill.engine.forget_prefixes()
    seconds = time.monotonic() - began_at
    again, anew = await prefill.prefill(prompt(60))
    lent = seen(await decode.generate(prompt(60), handoff), first)
    await prefill.free(again.lease)
    assert anew.prompt_sources is not None
    return {"seconds": seconds, "local": anew.prompt_sources.local, "lent": lent}


def num_preemptions() -> float:
    """Of the engine that was started last."""
    return REGISTRY.get_sample_value("vllm:num_preemptions_total", _labels("vllm:num_preemptions")) or 0.0


def _labels(name: str) -> dict[str, str]:
    (family,) = (metric for metric in REGISTRY.collect() if metric.name == name)
    return family.samples[0].labels


def seen(deltas: list[TokenDelta], reference: TokenDelta | None) -> dict[str, Any]:
    first = deltas[0]
    assert first.prompt_sources is not None and first.top_logprobs is not None
    return {
        "tokens": [token for delta in deltas for token in delta.token_ids],
        "sources": msgspec.structs.asdict(first.prompt_sources),
        "distance": verify.distance(reference.top_logprobs or [], first.top_logprobs) if reference else None,
    }


def prompt(seed: int) -> list[int]:
    """Token ids that share no prefix with another seed's."""
    return [300 + (seed * 7919 + i * i * 31 + i * 17) % 1000 for i in range(LENGTH)]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(asyncio.run(lives_of_a_handoff())))
