"""A prefill and a decode engine without the workers around them, and handoffs that no worker would allow. A program:
vLLM spawns its engine cores. Writes what it saw as JSON; tests/real_cluster/test_lent_blocks.py says what that must be.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from vllm.sampling_params import SamplingParams

from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import Pool, RequestId
from cluster.step_stream.buffer import TokenBuffer
from kvtransfer import verify
from kvtransfer.handoff import KVHandoff
from kvtransfer.lease_terms import LeaseEnd, LeaseId
from tests.real_cluster.bare_engine import CONFIG, a_bare_engine

KV_BYTES = {Pool.PREFILL: 11 << 20, Pool.DECODE: 64 << 20}
"""The prefill engine has room for few prompts, so that freed blocks hold another one soon."""
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
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

    def request(self, prompt: list[int]) -> GenerateRequest:
        self._num_requests += 1
        return GenerateRequest(
            request_id=RequestId(f"request-{self._num_requests}"),
            prompt_token_ids=prompt,
            sampling_params=encode_sampling_params(PARAMS),
            is_verified=True,
        )

    async def prefill(self, prompt: list[int]) -> tuple[KVHandoff, TokenDelta]:
        prefilled = await self.engine.prefills.prefill(self.request(prompt))
        assert prefilled is not None and prefilled[0].handoff is not None
        return prefilled[0].handoff, prefilled[0].first

    async def generate(self, prompt: list[int], handoff: KVHandoff | None, time_s: float) -> list[TokenDelta]:
        feed, deltas = TokenBuffer(1), list[TokenDelta]()
        await self.engine.generations.start(self.request(prompt), handoff, feed, time.monotonic() + time_s)
        while batch := await feed.next():
            deltas += batch
        return deltas

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
    steps["in time"] = seen(await decode.generate(prompt(0), handoff, IN_TIME_S), first)
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

    handoff, _ = await prefill.prefill(prompt(30))
    kept = await prefill.engine.prefills.extend_leases([handoff.lease, LeaseId("unknown")], 1.0)
    unused_end = await ends.of(handoff.lease)
    usage = prefill.engine.load().kv_cache_usage
    prefill.engine.shutdown()
    decode.engine.shutdown()
    return {
        "right": right["tokens"],
        "steps": steps,
        "freed_s": sorted(freed_s),
        "kept": kept == [handoff.lease],
        "unused_end": unused_end,
        "usage": usage,
    }


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
