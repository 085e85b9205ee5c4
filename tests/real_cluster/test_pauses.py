"""Batch answers that pause for an interactive request, on an engine whose memory they fill."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.drills.word_lists import WordList, word_list
from tests.real_cluster.service import CHANGES, Service

NUM_BATCH, NUM_PROMPT, NUM_TOKENS = 4, 150, 1000
MAX_MODEL_LEN = 2048
ROOM_TOKENS, PREFILL_ROOM_TOKENS = 4096, MAX_MODEL_LEN + 64
"""KV tokens of the decode worker and of the prefill worker."""
KV_BYTES_PER_TOKEN = 2 * 2 * 2 * 64 * 5
"""Keys and values of 2 heads of 64 numbers of 2 bytes, in 5 layers (conf/models/baton-demo/config.json)."""
DECODED_FOR_S = 4.0
"""Time for which the batch requests decode first: longer than LEAST_RUN_S of router/admission/preemption.py."""
TTFT_S = 2.0
INTERACTIVE = [300 + i * i % 1000 for i in range(1700)]
"""A prompt that finds no room beside the batch requests."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose engines have little memory."""
    changes: dict[str, Any] = {
        **CHANGES,
        "engine": {"max_model_len": MAX_MODEL_LEN},
        "prefill": {"engine": {"kv_cache_memory_bytes": PREFILL_ROOM_TOKENS * KV_BYTES_PER_TOKEN}},
        "decode": {"engine": {"kv_cache_memory_bytes": ROOM_TOKENS * KV_BYTES_PER_TOKEN}},
        "ingress": {**CHANGES["ingress"], "keep_receipts": 100},
        "slo": {"interactive": {"ttft_s": TTFT_S, "ttft_per_prefill": 1.0, "tpot_s": 0.5}},
    }
    running = Service(tmp_path_factory.mktemp("pauses"), changes)
    try:
        running.wait_until_ready()
        yield running
    finally:
        left = running.stop()
    assert not left


class Stream:
    """A streamed answer, and what it has brought so far."""

    def __init__(self, client: openai.AsyncOpenAI, prompt: str | list[int], tier: str, **fields: Any) -> None:
        self.text = ""
        self.has_begun = asyncio.Event()
        self.reading = asyncio.create_task(self._read(client, prompt, tier, **fields))

    async def _read(self, client: openai.AsyncOpenAI, prompt: str | list[int], tier: str, **fields: Any) -> None:
        stream = await client.completions.create(
            model="baton-demo",
            prompt=prompt,
            temperature=0.0,
            stream=True,
            extra_body={"ignore_eos": True, "service_tier": tier},
            **fields,
        )
        async for chunk in stream:
            self.text += chunk.choices[0].text
            self.has_begun.set()


def batch(client: openai.AsyncOpenAI, words: WordList, **fields: Any) -> Stream:
    return Stream(client, words.prompt, "flex", max_tokens=NUM_TOKENS, **fields)


async def test_batch_answers_pause_for_an_interactive_request_and_lose_no_token(small: Service) -> None:
    lists = [word_list(seed, NUM_PROMPT) for seed in range(NUM_BATCH)]
    right = [words.answer(NUM_TOKENS) for words in lists]
    async with openai.AsyncOpenAI(base_url=f"{small.url}/v1", api_key="unused", max_retries=0, timeout=300) as client:
        for _ in range(2):  # the Scheduler learns how long these answers are
            for one in [batch(client, words) for words in lists]:
                await one.reading
        assert small.metric("baton_pauses_total") == 0

        several = [batch(client, words) for words in lists]
        # It fills the prefill worker, and cannot pause there
        keeps = batch(client, word_list(NUM_BATCH, 900), extra_headers={"x-baton-path": "P"})
        for one in [*several, keeps]:
            await one.has_begun.wait()
        await asyncio.sleep(DECODED_FOR_S)
        await Stream(client, INTERACTIVE, "priority", max_tokens=10).reading
        for one in several:
            await one.reading
        await keeps.reading
    assert [one.text for one in several] == right
    receipts = small.get("/baton/receipts?last=100").json()["receipts"]
    (interactive,) = [receipt for receipt in receipts if receipt["slo_class"] == "interactive"]
    assert "paused" in interactive["placement"]["why"]
    assert interactive["result"] == "good"
    paused = [receipt for receipt in receipts if receipt["num_pauses"]]
    assert paused
    assert {(receipt["slo_class"], receipt["outcome"], receipt["path"]) for receipt in paused} == {
        ("batch", "finished", "D")
    }
    assert small.metric("baton_pauses_total", slo_class="batch") == len(paused)
