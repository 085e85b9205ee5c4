"""A prefill and a decode engine with tiers, their KV events, and an index that hears them. A program: vLLM spawns its
engine cores. Writes what it saw as JSON; tests/engines/test_cached_blocks.py says what that must be.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import REGISTRY
from vllm.sampling_params import SamplingParams

from cluster.config.pools import DiskTierConfig, TiersConfig
from cluster.engine.block_hashes import BlockHasher
from cluster.engine.kv_event_feed import KvEventFeed
from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import GenerateRequest, PromptTokenSources
from cluster.messages.ids import Pool, RequestId, WorkerId
from cluster.messages.kv_events import KvEvents, KvTier
from cluster.messages.retention import ToolWait
from cluster.step_stream.buffer import TokenBuffer
from kvtransfer.handoff import KVHandoff
from router.prefixes.index import PrefixIndex
from tests.engines.bare_engine import CONFIG, a_bare_engine
from tests.expected import present

NUM_TOKENS, NUM_OUTPUT = 1000, 100
KV_BYTES = 11 << 20
"""KV memory of the prefill engine, in bytes: room for few prompts."""
KEPT_SHARE = 0.5
"""Of that memory, for conversations that wait for tools. The decode engine keeps none."""
EVICTING, EVICTING_AGAIN = range(20, 26), range(30, 35)
SALT = "tenant"


class ListenedTo:
    """An engine, and the feed that a worker would have."""

    def __init__(self, pool: Pool, index: PrefixIndex, disk: Path | None = None) -> None:
        config = CONFIG.pool(CONFIG.decode)
        if disk is None:
            engine = {**config.engine, "kv_cache_memory_bytes": KV_BYTES}
            config = msgspec.structs.replace(config, kept_share=KEPT_SHARE, engine=engine)
        else:
            tiers = TiersConfig(dram_gib=0.125, disk=DiskTierConfig(path=str(disk), gib=1))
            config = msgspec.structs.replace(config, tiers=tiers)
        self.engine = a_bare_engine(pool, config, lambda ended: None)
        self.worker = WorkerId(pool)
        self.feed = KvEventFeed(self.worker, self.engine.kv_events, self._tell)
        self.index = index
        self.drops_next = False
        self.sources: PromptTokenSources | None = None
        """Of the latest prompt that an answer was generated for."""
        self._task = asyncio.create_task(self.feed.run())
        self._num_requests = 0

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.engine.shutdown()

    async def generate(
        self,
        prompt: list[int],
        salt: str | None,
        handoff: KVHandoff | None = None,
        num_public: int = 0,
        num_output: int = NUM_OUTPUT,
    ) -> list[int]:
        feed, tokens = TokenBuffer(1), list[int]()
        request = self._request(prompt, salt, num_public, num_output)
        await self.engine.generations.start(request, handoff, feed, time.monotonic() + 30)
        while deltas := await feed.next():
            for delta in deltas:
                tokens += delta.token_ids
                self.sources = delta.prompt_sources or self.sources
        return tokens

    async def prefill(self, prompt: list[int], salt: str | None, num_public: int = 0) -> KVHandoff:
        prefilled = await self.engine.prefills.prefill(self._request(prompt, salt, num_public))
        assert prefilled is not None and prefilled[0].handoff is not None
        return prefilled[0].handoff

    async def forget(self) -> None:
        self.feed.mirror.expect_clear()
        await self.engine.forget_prefixes()
        self.feed.mirror.clear()

    def _request(
        self, prompt: list[int], salt: str | None, num_public: int, num_output: int = NUM_OUTPUT
    ) -> GenerateRequest:
        self._num_requests += 1
        params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
        return GenerateRequest(
            request_id=RequestId(f"request-{self._num_requests}"),
            prompt_token_ids=prompt,
            sampling_params=encode_sampling_params(params),
            cache_salt=salt,
            num_public_tokens=num_public,
        )

    async def _tell(self, messages: list[KvEvents]) -> None:
        for message in messages:
            if self.drops_next:
                self.drops_next = False
            elif self.index.handle(message, 0.0):
                self.feed.mirror.want_snapshot()


class Watch:
    """What the index says of a prompt, once it says what is waited for, or at last."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._hasher = BlockHasher(CONFIG.block_size)

    async def hits(
        self,
        engine: ListenedTo,
        tokens: list[int],
        salt: str | None,
        wanted: Callable[..., bool],
        num_public: int = 0,
    ) -> Any:
        hashes = await self._hasher.of_prompt(tokens, salt, num_public)
        for _ in range(100):
            found = self._index.longest(hashes, 0.0).get(engine.worker)
            hit = (found.num_blocks, found.num_gpu_blocks) if found else (0, 0)
            if wanted(*hit):
                break
            await asyncio.sleep(0.05)
        return list(hit)


async def life_of_blocks(folder: Path) -> dict[str, Any]:
    index = PrefixIndex()
    watch = Watch(index)
    prefill, decode = ListenedTo(Pool.PREFILL, index), ListenedTo(Pool.DECODE, index, folder)
    whole = NUM_TOKENS // CONFIG.block_size
    seen: dict[str, Any] = {"whole": whole, "block_size": CONFIG.block_size}

    def all_of(num_blocks: int, _: int) -> bool:
        return num_blocks >= whole

    answer = await decode.generate(prompt(0), SALT)
    text = prompt(0) + answer
    seen["prompt"] = await watch.hits(decode, prompt(0), SALT, all_of)
    computed = (len(text) - 1) // CONFIG.block_size
    seen["prompt and answer"] = await watch.hits(decode, text, SALT, lambda n, _: n >= computed)
    seen["of nobody"] = await watch.hits(decode, prompt(0), None, lambda n, _: True)
    await decode.generate(prompt(0), None)
    seen["of nobody, after it was asked for"] = await watch.hits(decode, prompt(0), None, all_of)
    tiers = (KvTier.HOST, KvTier.DISK)
    await decode.generate(prompt(5), None)  # what a step has stored in a tier, the next one says
    seen["in tiers"] = [len(decode.feed.mirror.blocks(tier)) >= whole for tier in tiers]

    handoff = await prefill.prefill(prompt(1), SALT)
    await decode.generate(prompt(1), SALT, handoff)
    seen["pulled"] = await watch.hits(decode, prompt(1), SALT, all_of)
    seen["pulled from"] = await watch.hits(prefill, prompt(1), SALT, all_of)

    for number in EVICTING:
        await prefill.generate(prompt(number), SALT)
    seen["evicted"] = await watch.hits(prefill, prompt(1), SALT, lambda n, _: n == 0)
    seen["exact after evictions"] = index.is_exact(prefill.worker)

    last, other = EVICTING[-1], EVICTING[-2]
    await tell_of_tools(prefill, prompt(last))
    for number in EVICTING_AGAIN:
        await prefill.generate(prompt(number), SALT, num_output=1)
    seen["kept"] = await shown_of_kept(prefill)
    seen["evicted, not kept"] = await watch.hits(prefill, prompt(other), SALT, lambda n, _: n == 0)
    await prefill.generate(prompt(last), SALT, num_output=1)
    seen["found after others"] = present(prefill.sources).local // CONFIG.block_size

    decode.drops_next = True
    await decode.generate(prompt(6), None)
    await decode.generate(prompt(7), None)
    seen["after a gap"] = [await watch.hits(decode, prompt(n), None, all_of) for n in (6, 7)]
    seen["exact after a gap"] = index.is_exact(decode.worker)

    await decode.engine._llm.reset_prefix_cache()
    await decode.generate(prompt(8), None)
    seen["in tiers alone"] = await watch.hits(decode, prompt(6), None, lambda n, near: n > 0 and not near)

    await decode.forget()
    seen["distrusted"] = await watch.hits(decode, prompt(7), None, lambda n, _: n == 0)
    await decode.generate(prompt(0), None)
    seen["anew"] = await watch.hits(decode, prompt(0), None, all_of)
    seen["distrusted, after the engine went on"] = await watch.hits(decode, prompt(7), None, lambda n, _: n == 0)
    seen["exact at last"] = [index.is_exact(engine.worker) for engine in (prefill, decode)]
    index.validate()
    await prefill.close()
    await decode.close()
    return seen


async def shown_of_kept(engine: ListenedTo) -> float | None:
    """The engine's kept blocks in its metrics. A step shows them if the last one that did is INTERVAL_S ago."""
    for _ in range(100):
        if (value := REGISTRY.get_sample_value("baton_kept_kv_blocks", {"pool": engine.worker})) is not None:
            return value
        await engine.generate(prompt(0)[:8], SALT, num_output=1)
        await asyncio.sleep(0.05)
    return None


async def tell_of_tools(engine: ListenedTo, answered: list[int]) -> None:
    """The answer to this prompt has called tools."""
    hashes = await BlockHasher(CONFIG.block_size).of_prompt(answered, SALT)
    await engine.engine.await_tools(ToolWait(hashes[-1]))


def prompt(seed: int) -> list[int]:
    """Token ids that share no prefix with another seed's."""
    return [300 + (seed * 7919 + i * i * 31 + i * 17) % 1000 for i in range(NUM_TOKENS)]


if __name__ == "__main__":
    Path(sys.argv[1], "seen.json").write_text(json.dumps(asyncio.run(life_of_blocks(Path(sys.argv[1])))))
