"""A prefill and a decode engine on which prompts overtake each other. A program: vLLM spawns its engine cores. Writes
what it saw as JSON; tests/engines/test_deadlines.py says what that must be.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from vllm.sampling_params import SamplingParams

from bench.fronts.pace import PACE_FILE_VARIABLE, write_pace
from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Pool, RequestId
from cluster.step_stream.buffer import TokenBuffer
from kvtransfer.handoff import KVHandoff, PrefillResult
from tests.engines.bare_engine import CONFIG, a_bare_engine

STEP, NUM_OUTPUT = 192, 12
"""Tokens of a step, and of an answer."""
STEP_S, TOKEN_S = 0.01, 0.001
"""Pace of the engine beside a decode: seconds that a step lasts at least, and more of it for each token. Where a step
that only decodes takes as long as one of `STEP` tokens, as on a machine that has other work, no objective bounds it.
"""
LONG, SHORT, DECODING = 3000, 100, 20
"""Tokens of the prompts. The long one takes many steps."""
PULL_WITHIN_S = 60.0
TIGHT_TPOT_S = 1e-3
"""An objective that no step meets, beside which prompts are computed in the smallest chunks."""


class Watched:
    """One engine, and in which order its requests got their first tokens."""

    def __init__(self, pool: Pool) -> None:
        config = CONFIG.pool(CONFIG.decode)
        engine = {**config.engine, "max_num_batched_tokens": STEP, "max_num_seqs": 8}
        engine["distributed_executor_backend"] = "bench.fronts.executor.PacedExecutor"
        config = msgspec.structs.replace(config, engine=engine)
        self.engine = a_bare_engine(pool, config, lambda ended: None)
        self.firsts: list[str] = []
        self.num_generated = Counter[str]()

    async def prefill(self, name: str, prompt: list[int], within_s: float) -> PrefillResult:
        prefilled = await self.engine.prefills.prefill(_request(name, prompt, within_s, 1))
        assert prefilled is not None
        self.firsts.append(name)
        return prefilled[0]

    async def generate(
        self,
        name: str,
        prompt: list[int],
        within_s: float | None = None,
        handoff: KVHandoff | None = None,
        num_output: int = NUM_OUTPUT,
        tpot_s: float | None = None,
    ) -> tuple[list[int], PromptTokenSources]:
        feed, deltas = TokenBuffer(1), list[TokenDelta]()
        request = _request(name, prompt, within_s, num_output, tpot_s)
        await self.engine.generations.start(request, handoff, feed, time.monotonic() + PULL_WITHIN_S)
        while batch := await feed.next():
            if not deltas:
                self.firsts.append(name)
            deltas += batch
            self.num_generated[name] += sum(len(delta.token_ids) for delta in batch)
        assert deltas[0].prompt_sources is not None
        return [token for delta in deltas for token in delta.token_ids], deltas[0].prompt_sources

    async def runs(self, num_requests: int) -> None:
        """Wait until so many requests run. The engine answers between two steps, and says then what runs."""
        async with asyncio.timeout(60):
            while self.engine.load().num_running != num_requests:
                await self.engine.answer()


async def overtaking(pace: Path) -> dict[str, Any]:
    """`pace`: the file with the pace of both engines."""
    write_pace(pace, 0.0)
    prefill, decode = Watched(Pool.PREFILL), Watched(Pool.DECODE)
    long, short, other = _prompt(1, LONG), _prompt(2, SHORT), _prompt(3, DECODING)
    right = {name: (await decode.generate(name, prompt))[0] for name, prompt in (("long", long), ("short", short))}

    await decode.engine.forget_prefixes()
    decode.firsts.clear()
    alone = await _overtaken(decode, long, short)
    alone_firsts = list(decode.firsts)

    beside, num_beside, beside_firsts = {}, {}, {}
    write_pace(pace, STEP_S, TOKEN_S)
    for case, tpot_s in (("beside a decode", None), ("beside a decode that is in a hurry", TIGHT_TPOT_S)):
        await decode.engine.forget_prefixes()
        decode.firsts.clear()
        decode.num_generated.clear()
        await decode.runs(0)
        decoding = asyncio.ensure_future(decode.generate("decoding", other, num_output=3000, tpot_s=tpot_s))
        beside[case] = await _overtaken(decode, long, short, num_beside=1)
        num_beside[case] = decode.num_generated["decoding"]
        await decode.engine.generations.stop(RequestId("decoding"))
        decoding.cancel()  # a request that is stopped gets nothing more, not even its end
        beside_firsts[case] = [name for name in decode.firsts if name != "decoding"]

    write_pace(pace, 0.0)

    slow = asyncio.ensure_future(prefill.prefill("long", long, 60.0))
    await prefill.runs(1)
    handed = await prefill.prefill("short", short, 0.1)
    await slow
    await decode.engine.forget_prefixes()
    decode.firsts.clear()
    pulled = await _overtaken(decode, long, short, handed.handoff)
    seen = {
        "right": right,
        "alone": {"tokens": alone, "firsts": alone_firsts},
        **{case: {"tokens": beside[case], "firsts": beside_firsts[case]} for case in beside},
        "generated beside": num_beside,
        "prefills": prefill.firsts,
        "by a pull": {"tokens": pulled, "firsts": decode.firsts},
        "step tokens": STEP,
        "shape": msgspec.structs.asdict(decode.engine.shape),
    }
    prefill.engine.shutdown()
    decode.engine.shutdown()
    return seen


async def _overtaken(
    engine: Watched, long: list[int], short: list[int], handoff: KVHandoff | None = None, num_beside: int = 0
) -> dict[str, list[int]]:
    """Tokens of a long prompt, and of a short one that comes while the long one is computed and is due before it.
    `num_beside`: requests that decode meanwhile.
    """
    await engine.runs(num_beside)
    slow = asyncio.ensure_future(engine.generate("long", long, 60.0))
    await engine.runs(num_beside + 1)
    tokens, sources = await engine.generate("short", short, 0.1, handoff)
    assert sources.pulled == (handoff.num_tokens if handoff else 0)
    return {"long": (await slow)[0], "short": tokens}


def _request(
    name: str, prompt: list[int], within_s: float | None, num_output: int, tpot_s: float | None = None
) -> GenerateRequest:
    params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
    return GenerateRequest(
        request_id=RequestId(name),
        prompt_token_ids=prompt,
        sampling_params=encode_sampling_params(params),
        first_token_within_s=within_s,
        tpot_s=tpot_s,
    )


def _prompt(seed: int, length: int) -> list[int]:
    """Token ids that share no prefix with another seed's."""
    return [300 + (seed * 7919 + i * i * 31 + i * 17) % 1000 for i in range(length)]


if __name__ == "__main__":
    pace_file = Path(os.environ[PACE_FILE_VARIABLE])
    Path(sys.argv[1]).write_text(json.dumps(asyncio.run(overtaking(pace_file))))
