"""A prefill and a decode engine with a small model, and what the decode engine makes of handoffs. A program: vLLM
spawns its engine cores. Writes what it saw as JSON; tests/engines/test_models.py says what that must be.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from vllm.sampling_params import SamplingParams

from cluster.config.application import parse
from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import Pool, RequestId
from cluster.repository import REPO_ROOT
from cluster.step_stream.buffer import TokenBuffer
from kvtransfer import verify
from kvtransfer.handoff import KVHandoff
from router.trust.kv_formats import unequal
from tests.engines.bare_engine import a_bare_engine
from tests.engines.models.checkpoints import make
from tests.expected import present

PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
PULL_TIMEOUT_S = 60.0
ENGINE = {"max_model_len": 2048, "max_num_seqs": 8, "kv_cache_memory_bytes": 64 << 20}


class Engines:
    def __init__(self, model: Path, changes: dict[str, dict[str, Any]]) -> None:
        """`changes`: engine arguments of a pool (`prefill`, `decode`), or of both (`engine`)."""
        args = yaml.safe_load((REPO_ROOT / "conf/local.yaml").read_text())["applications"][0]["args"]
        pools = {str(pool): {"engine": changes.get(pool, {})} for pool in Pool}
        engine = args["engine"] | ENGINE | changes.get("engine", {})
        config = parse({**args, **pools, "model": str(model), "engine": engine})
        self.prefill = a_bare_engine(Pool.PREFILL, config.pool(config.prefill), lambda ended: None)
        self.decode = a_bare_engine(Pool.DECODE, config.pool(config.decode), lambda ended: None)
        self._num_requests = 0

    async def generate(self, prompt: list[int], handoff: KVHandoff | None = None) -> TokenDelta:
        """The first token, and where the prompt's KV blocks came from."""
        buffer, deltas = TokenBuffer(1), list[TokenDelta]()
        await self.decode.generations.start(self._request(prompt), handoff, buffer, time.monotonic() + PULL_TIMEOUT_S)
        while batch := await buffer.next():
            deltas += batch
        return deltas[0]

    async def handed_over(self, length: int) -> dict[str, Any]:
        """A prompt computed by the decode engine, and then handed over. The control is another prompt that ends with
        the same tokens.
        """
        prompt, other = prompt_of(length, 0), prompt_of(length, 1)
        computed, control = await self.generate(prompt), await self.generate(other)
        await self.decode.forget_prefixes()
        result, _ = present(await self.prefill.prefills.prefill(self._request(prompt)))
        pulled = await self.generate(prompt, result.handoff)
        return {
            "length": length,
            "handed_over": present(result.handoff).num_tokens,
            "pulled": present(pulled.prompt_sources).pulled,
            "follows": result.follows(length),
            "distance": distance(computed, pulled),
            "distance_of_control": distance(computed, control),
        }

    def _request(self, prompt: list[int]) -> GenerateRequest:
        self._num_requests += 1
        return GenerateRequest(
            request_id=RequestId(f"request-{self._num_requests}"),
            prompt_token_ids=prompt,
            sampling_params=encode_sampling_params(PARAMS),
            is_verified=True,
        )


async def served(kind: str, changes: dict[str, dict[str, Any]], lengths: list[int]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        make(kind, Path(folder))
        engines = Engines(Path(folder), changes)
        both = (engines.prefill, engines.decode)
        for engine in both:
            await engine.warm_up()
        seen = {
            "mismatch": unequal(*(present(engine.shape.kv_format) for engine in both)),
            "leaves_tokens": engines.prefill.shape.leaves_tokens,
            "handoffs": [await engines.handed_over(length) for length in lengths],
        }
        for engine in both:
            engine.shutdown()
    return seen


def prompt_of(length: int, variant: int) -> list[int]:
    """Token ids. Variants have their last tokens in common, and nothing else."""
    own = [300 + (variant * 7919 + i * i * 31 + i * 17) % 1000 for i in range(length - 4)]
    return [*own, 5, 6, 7, 8]


def distance(one: TokenDelta, other: TokenDelta) -> float:
    """Largest difference of the log-probabilities of the likeliest tokens. Large if the tokens differ."""
    return min(verify.distance(one.top_logprobs or [], other.top_logprobs or []), 1e6)


if __name__ == "__main__":
    kind, changes, lengths, target = sys.argv[1:]
    Path(target).write_text(json.dumps(asyncio.run(served(kind, json.loads(changes), json.loads(lengths)))))
