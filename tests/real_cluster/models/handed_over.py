"""A prefill and a decode engine with a small model, and what the decode engine makes of handoffs. A program: vLLM
spawns its engine cores. Writes what it saw as JSON; tests/real_cluster/test_models.py says what that must be.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import yaml
from vllm.sampling_params import SamplingParams

from cluster.config.application import parse
from cluster.engine.engine import Engine
from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import Pool, RequestId
from cluster.repository import REPO_ROOT
from cluster.step_stream.buffer import TokenBuffer
from kvtransfer.handoff import KVHandoff
from router.load.kv_formats import unequal
from tests.expected import present
from tests.real_cluster.bare_engine import a_bare_engine
from tests.real_cluster.models.checkpoints import make

NUM_OUTPUT_TOKENS = 16
PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)
LENGTHS = (600, 601, 608)
"""Prompts that end within a KV block, and one that fills its last block."""
PULL_TIMEOUT_S = 60.0
ENGINE = {"max_model_len": 2048, "max_num_seqs": 8, "kv_cache_memory_bytes": 64 << 20}


class Engines:
    def __init__(self, model: Path, changes: dict[str, dict[str, Any]]) -> None:
        """`changes`: engine arguments of a pool (`prefill`, `decode`), or of both (`engine`)."""
        args = yaml.safe_load((REPO_ROOT / "conf/local.yaml").read_text())["applications"][0]["args"]
        args["engine"] |= ENGINE | changes.get("engine", {})
        args |= {"model": str(model), **{pool: {"engine": changes.get(pool, {})} for pool in Pool}}
        config = parse(args)
        self.prefill = self._started(Pool.PREFILL, config.pool(config.prefill))
        self.decode = self._started(Pool.DECODE, config.pool(config.decode))
        self._num_requests = 0

    @staticmethod
    def _started(pool: Pool, config: Any) -> Engine:
        return a_bare_engine(pool, config, lambda ended: None)

    async def generate(self, prompt: list[int], handoff: KVHandoff | None = None) -> tuple[list[int], dict[str, int]]:
        buffer, tokens, sources = TokenBuffer(1), list[int](), dict[str, int]()
        await self.decode.generations.start(self._request(prompt), handoff, buffer, time.monotonic() + PULL_TIMEOUT_S)
        while deltas := await buffer.next():
            for delta in deltas:
                tokens += delta.token_ids
                sources = msgspec.structs.asdict(delta.prompt_sources) if delta.prompt_sources else sources
        return tokens, sources

    async def handed_over(self, prompt: list[int], right: list[int]) -> dict[str, Any]:
        """The same prompt as a session would serve it on the path P->D."""
        await self.decode.forget_prefixes()
        result, _ = present(await self.prefill.prefills.prefill(self._request(prompt)))
        follows = result.follows(len(prompt))
        early = result.first.token_ids if follows else []
        tokens, sources = await self.generate(prompt + early, result.handoff)
        return {
            "same": (early + tokens)[:NUM_OUTPUT_TOKENS] == right,
            "pulled": sources["pulled"],
            "computed": sources["computed"],
            "follows": follows,
        }

    def _request(self, prompt: list[int]) -> GenerateRequest:
        self._num_requests += 1
        return GenerateRequest(
            request_id=RequestId(f"request-{self._num_requests}"),
            prompt_token_ids=prompt,
            sampling_params=encode_sampling_params(PARAMS),
        )


async def served(kind: str, changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        make(kind, Path(folder))
        engines = Engines(Path(folder), changes)
        for engine in (engines.prefill, engines.decode):
            await engine.warm_up()
        formats = [present(engine.shape.kv_format) for engine in (engines.prefill, engines.decode)]
        handoffs = []
        for length in LENGTHS:
            prompt = [300 + (length * 7919 + i * i * 31 + i * 17) % 1000 for i in range(length)]
            right, _ = await engines.generate(prompt)
            handoffs.append({"length": length, **await engines.handed_over(prompt, right)})
        for engine in (engines.prefill, engines.decode):
            engine.shutdown()
    return {"handoffs": handoffs, "mismatch": unequal(*formats), "leaves_tokens": engines.prefill.shape.leaves_tokens}


if __name__ == "__main__":
    kind, changes, target = sys.argv[1:]
    Path(target).write_text(json.dumps(asyncio.run(served(kind, json.loads(changes)))))
