"""A prefill and a decode engine with tiers, and tenants whose prompts begin with a public prefix. A program: vLLM
spawns its engine cores. Writes what it saw as JSON; tests/engines/test_public_blocks.py says what that must be.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from cluster.messages.ids import Pool
from cluster.messages.kv_events import KvTier
from kvtransfer.handoff import KVHandoff
from router.prefixes.index import PrefixIndex
from tests.engines.bare_engine import CONFIG
from tests.engines.cached_blocks import ListenedTo, Watch, prompt

NUM_PUBLIC = 30 * CONFIG.block_size
NUM_PRIVATE = 10 * CONFIG.block_size + 5


class Asked:
    """An engine that tenants ask."""

    def __init__(self, engine: ListenedTo) -> None:
        self.engine = engine

    async def by(
        self, tenant: str, text: list[int], handoff: KVHandoff | None = None, *, shares: bool = True
    ) -> dict[str, Any]:
        """The answer, and the sources of the prompt's tokens."""
        tokens = await self.engine.generate(text, tenant, handoff, NUM_PUBLIC if shares else 0)
        assert self.engine.sources is not None
        return {"answer": tokens, **msgspec.structs.asdict(self.engine.sources)}


async def tenants_with_a_public_prefix(folder: Path) -> dict[str, Any]:
    index = PrefixIndex()
    watch = Watch(index)
    prefill, decode = ListenedTo(Pool.PREFILL, index), ListenedTo(Pool.DECODE, index, folder)
    of_decode, of_prefill = Asked(decode), Asked(prefill)
    seen: dict[str, Any] = {"public": NUM_PUBLIC, "prompt": len(text(0)), "block_size": CONFIG.block_size}

    seen["one"] = await of_decode.by("one", text(0))
    seen["two"] = await of_decode.by("two", text(0))
    seen["two, another tail"] = await of_decode.by("two", text(1))
    seen["alone"] = await of_decode.by("alone", text(0), shares=False)
    seen["one, not sharing any more"] = await of_decode.by("one", text(2), shares=False)
    seen["one again"] = await of_decode.by("one", text(0))
    num_blocks = NUM_PUBLIC // CONFIG.block_size
    for tenant in ("one", "three"):
        hits = await watch.hits(decode, text(0), tenant, lambda n, _: n >= num_blocks, NUM_PUBLIC)
        seen[f"index of {tenant}"] = hits
    seen["index of another that does not share"] = await watch.hits(decode, text(0), "none", lambda *_: True)

    tier = decode.feed.mirror
    for seed in range(3, 20):  # what a step has stored in a tier, the next one says
        if len(tier.blocks(KvTier.HOST)) >= num_blocks:
            break
        await decode.generate(prompt(seed), None)
    await decode.engine._llm.reset_prefix_cache()
    seen["three, from a tier"] = await of_decode.by("three", text(0))

    await decode.forget()
    handoff = await prefill.prefill(text(0), "one", NUM_PUBLIC)
    seen["one, handed over"] = await of_decode.by("one", text(0), handoff)
    seen["two, after the handover"] = await of_decode.by("two", text(0))
    seen["two, on the prefill engine"] = await of_prefill.by("two", text(0))
    resumed = text(0) + seen["one"]["answer"][:20]
    seen["one, resumed on the prefill engine"] = await of_prefill.by("one", resumed)
    await prefill.close()
    await decode.close()
    return seen


def text(seed: int) -> list[int]:
    """The public prefix, and a tail that shares no block with another seed's."""
    return prompt(50)[:NUM_PUBLIC] + prompt(60 + seed)[:NUM_PRIVATE]


if __name__ == "__main__":
    Path(sys.argv[1], "seen.json").write_text(json.dumps(asyncio.run(tenants_with_a_public_prefix(Path(sys.argv[1])))))
