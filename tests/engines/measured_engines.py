"""A prefill and a decode engine, one after the other, and what vLLM's metrics say of what they did. A program: vLLM
spawns its engine cores. Writes what it saw as JSON; tests/engines/test_engine_metrics.py says what that must be.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from vllm.sampling_params import SamplingParams

from cluster.engine.engine import Engine
from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import Pool, RequestId
from cluster.metrics.page import scrape
from cluster.step_stream.buffer import TokenBuffer
from tests.engines.bare_engine import CONFIG, a_bare_engine

NUM_REQUESTS, PROMPT, OUTPUT = 6, 96, 96
"""Requests that come at the same time, and the tokens of each. Together they need more KV blocks than there are."""
NUM_BLOCKS = 20
MEASURED = {"enable_mfu_metrics": True, "kv_cache_metrics": True, "kv_cache_metrics_sample": 1.0}


def an_engine(pool: Pool) -> Engine:
    config = CONFIG.pool(CONFIG.prefill if pool is Pool.PREFILL else CONFIG.decode)
    sizes = {"max_num_seqs": NUM_REQUESTS, "num_gpu_blocks_override": NUM_BLOCKS, "max_model_len": 512}
    engine = {**config.engine, **MEASURED, **sizes}
    return a_bare_engine(pool, msgspec.structs.replace(config, engine=engine), lambda ended: None)


def a_request(name: str, seed: int) -> GenerateRequest:
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True, detokenize=False)
    prompt = [300 + (seed * 7919 + i * i * 31 + i * 17) % 1000 for i in range(PROMPT)]
    return GenerateRequest(
        request_id=RequestId(name), prompt_token_ids=prompt, sampling_params=encode_sampling_params(params)
    )


def shown() -> dict[str, float]:
    """The value of each series of this process's engine, summed over its labels. Histograms: their numbers and sums."""
    values = dict[str, float]()
    for family in scrape("", "").families:
        if family.name.startswith(("vllm:", "baton_engine_")):
            for line in family.series.decode().splitlines():
                name, value = line.partition("{")[0], float(line.rpartition(" ")[2])
                if not name.endswith("_bucket"):
                    values[name] = values.get(name, 0.0) + value
    return values


async def generate(engine: Engine, name: str, seed: int) -> int:
    buffer, num_tokens = TokenBuffer(1), 0
    await engine.generations.start(a_request(name, seed), None, buffer)
    while deltas := await buffer.next():
        num_tokens += sum(len(delta.token_ids) for delta in deltas)
    return num_tokens


async def decoding() -> dict[str, Any]:
    engine = an_engine(Pool.DECODE)
    before, busy = shown(), list[dict[str, float]]()
    running = [asyncio.ensure_future(generate(engine, f"r{number}", number)) for number in range(NUM_REQUESTS)]
    while not all(task.done() for task in running):
        await asyncio.sleep(0.05)
        busy.append(shown())
    num_tokens = sum(task.result() for task in running)
    await generate(engine, "again", NUM_REQUESTS - 1)
    async with asyncio.timeout(60):
        while (after := shown())["vllm:num_requests_running"]:
            await engine.answer()
    engine.shutdown()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    most = {name: max(each[name] for each in busy) for name in names}
    return {"before": before, "most": most, "after": after, "tokens": num_tokens + OUTPUT}


async def prefilling() -> dict[str, Any]:
    engine = an_engine(Pool.PREFILL)
    before = shown()
    for number, seed in enumerate((1, 1)):
        prefilled = await engine.prefills.prefill(a_request(f"r{number}", seed))
        assert prefilled is not None
    looked_up = "vllm:prefix_cache_queries_total"
    async with asyncio.timeout(60):  # statistics come after the tokens
        while (after := shown())[looked_up] - before.get(looked_up, 0.0) < 2 * PROMPT:
            await engine.answer()
    engine.shutdown()
    return {"before": before, "after": after}


if __name__ == "__main__":
    seen = {"prefill": asyncio.run(prefilling()), "decode": asyncio.run(decoding())}
    Path(sys.argv[1]).write_text(json.dumps(seen))
