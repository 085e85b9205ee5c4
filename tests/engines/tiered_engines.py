"""A prefill and a decode engine with tiers, and what becomes of a prompt in them. A program: vLLM spawns its engine
cores, and two of them are killed. Writes what it saw as JSON; tests/engines/test_tiers.py says what that must be.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from openai.types.chat import ChatCompletionMessageParam
from prometheus_client import REGISTRY
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import get_tokenizer

from cluster.config.pools import DiskTierConfig, TiersConfig
from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import GenerateRequest, PromptTokenSources
from cluster.messages.ids import Pool, RequestId
from cluster.repository import resolve_model
from cluster.step_stream.buffer import TokenBuffer
from kvtransfer.handoff import KVHandoff
from kvtransfer.lease_terms import LeaseEnd, LeaseId
from tests.engines.bare_engine import CONFIG, a_bare_engine
from tests.real_cluster.recall import recall_prompts

TOKENIZER = get_tokenizer(resolve_model(CONFIG.model))
NUM_OUTPUT_TOKENS = 48
NUM_TRIES = 200
PULL_TIMEOUT_S = 30.0
PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)
"""The tokens after the end of the answer fill blocks. Which tokens these are says nothing: the model was not trained to
go on after its end, and on some processors the paths differ there.
"""


class TieredEngine:
    def __init__(self, pool: Pool, disk: Path, ended_leases: list[tuple[LeaseId, LeaseEnd]]) -> None:
        tiers = TiersConfig(dram_gib=0.125, disk=DiskTierConfig(path=str(disk), gib=1))
        config = msgspec.structs.replace(CONFIG.pool(CONFIG.decode), tiers=tiers)
        self._engine = a_bare_engine(pool, config, ended_leases.extend)
        self._num_requests = 0
        self._engine_id = self._engine._llm.vllm_config.kv_transfer_config.engine_id
        self.distrust = self._engine.forget_prefixes
        self.shutdown = self._engine.shutdown

    def names_in_memory(self) -> list[str]:
        return [file.name for file in Path("/dev/shm").glob(f"*{self._engine_id}*")]

    def request(self, prompt: list[int]) -> GenerateRequest:
        self._num_requests += 1
        return GenerateRequest(
            request_id=RequestId(f"request-{self._num_requests}"),
            prompt_token_ids=prompt,
            sampling_params=encode_sampling_params(PARAMS),
        )

    async def prefill(self, prompt: list[int]) -> tuple[KVHandoff, dict[str, Any]]:
        await self._forget()
        prefilled = await self._engine.prefills.prefill(self.request(prompt))
        assert prefilled is not None
        result, _ = prefilled
        assert result.handoff is not None and result.first.prompt_sources is not None
        return result.handoff, seen(result.first.prompt_sources)

    async def generate(self, prompt: list[int], handoff: KVHandoff | None = None) -> dict[str, Any]:
        await self._forget()
        before, buffer = hits_by_tier(), TokenBuffer(1)
        await self._engine.generations.start(self.request(prompt), handoff, buffer, time.monotonic() + PULL_TIMEOUT_S)
        tokens: list[int] = []
        sources = None
        while deltas := await buffer.next():
            for delta in deltas:
                tokens += delta.token_ids
                sources = delta.prompt_sources or sources
        assert sources is not None
        hits = {tier: num - before[tier] for tier, num in hits_by_tier().items() if num > before[tier]}
        answer = tokens[: tokens.index(TOKENIZER.eos_token_id)]
        return seen(sources) | {"answer": TOKENIZER.decode(answer), "hits": hits}

    async def _forget(self) -> None:
        """Empty the engine's own prefix cache. Refused while a block is in use: pinned, or being stored in a tier."""
        for _ in range(NUM_TRIES):
            if await self._engine._llm.reset_prefix_cache():
                return
            await asyncio.sleep(0.05)
        raise TimeoutError("blocks stay in use")

    async def kill(self) -> None:
        (core,) = self._engine._llm.engine_core.resources.engine_manager.processes
        os.kill(core.pid, signal.SIGKILL)
        core.join()


def seen(sources: PromptTokenSources) -> dict[str, Any]:
    return {"sources": msgspec.structs.asdict(sources)}


def hits_by_tier() -> dict[str, int]:
    """Hits by tier of the engine that was started last, as vLLM counts them."""
    (family,) = (metric for metric in REGISTRY.collect() if metric.name == "vllm:prompt_tokens_cached_by_source")
    return {sample.labels["source"]: int(sample.value) for sample in family.samples if sample.name.endswith("_total")}


def num_blocks_on(disk: Path) -> int:
    return sum(1 for _ in disk.rglob("*.bin"))


async def written(disk: Path, num_blocks: int) -> None:
    await until(lambda: num_blocks_on(disk) >= num_blocks, "blocks do not reach the disk")


async def removed(disk: Path) -> None:
    await until(lambda: not num_blocks_on(disk), "blocks that are not trusted stay on the disk")


async def until(is_so: Callable[[], bool], otherwise: str) -> None:
    for _ in range(NUM_TRIES):
        if is_so():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(otherwise)


async def life_of_two_prompts(folder: Path) -> dict[str, Any]:
    chats = recall_prompts(first_seed=4_000_000)
    (first, first_code), (second, second_code) = [(tokenized(chat), code) for chat, code in (next(chats), next(chats))]
    steps: dict[str, Any] = {}
    ended_leases: list[tuple[LeaseId, LeaseEnd]] = []
    prefill = TieredEngine(Pool.PREFILL, folder / "prefill", ended_leases)
    decode = TieredEngine(Pool.DECODE, folder / "decode", ended_leases)
    names_in_memory = prefill.names_in_memory() + decode.names_in_memory()

    steps["computed"] = await decode.generate(first)
    steps["from dram"] = await decode.generate(first)
    handoff, steps["prefill computed"] = await prefill.prefill(first)
    steps["handed over"] = await decode.generate(first, handoff)
    handoff, steps["prefill from dram"] = await prefill.prefill(first)
    steps["handed over from dram"] = await decode.generate(first, handoff)

    handoff, _ = await prefill.prefill(second)
    steps["second handed over"] = await decode.generate(second, handoff)
    steps["second from dram"] = await decode.generate(second)

    await written(folder / "decode", (len(first) + len(second)) // 32)
    await decode.distrust()
    await removed(folder / "decode")
    steps["distrusted"] = await decode.generate(first)

    handoff, _ = await prefill.prefill(first)
    await prefill.kill()
    steps["handoff lost"] = await decode.generate(first, handoff)

    await written(folder / "decode", len(first) // 32)
    await decode.kill()
    prefill.shutdown()
    decode.shutdown()
    decode = TieredEngine(Pool.DECODE, folder / "decode", ended_leases)
    steps["from disk"] = await decode.generate(first)
    decode.shutdown()
    return {
        "prompts": {"first": len(first), "second": len(second)},
        "codes": {"first": first_code, "second": second_code},
        "steps": steps,
        "ended_leases": [how for _, how in ended_leases],
        "names_in_memory": names_in_memory,
    }


def tokenized(chat: list[ChatCompletionMessageParam]) -> list[int]:
    tokens = TOKENIZER.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
    return list(map(int, tokens))


if __name__ == "__main__":
    seen_by_engines = asyncio.run(life_of_two_prompts(Path(sys.argv[1])))
    (Path(sys.argv[1]) / "seen.json").write_text(json.dumps(seen_by_engines))
