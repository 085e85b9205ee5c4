"""Batch answers that pause for an interactive request, on an engine whose memory they fill."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bench.fronts.pace import PACE_FILE_VARIABLE, write_pace
from tests.drills.word_lists import WordList, word_list
from tests.real_cluster.service import CHANGES, Service

pytestmark = pytest.mark.full_matrix

STEP_S = 0.025
"""Time of an engine's step, in seconds. Engines keep this pace, so that a fast machine has no more time to spare."""
NUM_BATCH, NUM_PROMPT, NUM_TOKENS = 8, 150, 350
MAX_MODEL_LEN = 2048
ROOM_TOKENS = 4096
"""KV tokens of the decode worker."""
KV_BYTES_PER_TOKEN = 2 * 2 * 2 * 64 * 5
"""Keys and values of 2 heads of 64 numbers of 2 bytes, in 5 layers (conf/models/baton-demo/config.json)."""
DECODED_FOR_S = 2.5
"""Time for which the batch requests decode first: longer than LEAST_RUN_S of router/admission/preemption.py. After it,
they still decode for more than TTFT_S.
"""
TTFT_S = 2.0
PACED = "bench.fronts.executor.PacedExecutor"
INTERACTIVE = [300 + i * i % 1000 for i in range(1700)]
"""A prompt that finds no room beside the batch requests."""
NUM_KEEPS = 500
"""Tokens of the request that keeps the prefill worker, which takes one request at a time."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose engines have little memory, and all the time that they need."""
    folder = tmp_path_factory.mktemp("pauses")
    write_pace(folder / "pace", STEP_S)
    changes: dict[str, Any] = {
        **CHANGES,
        "engine": {"max_model_len": MAX_MODEL_LEN, "distributed_executor_backend": PACED},
        "prefill": {"max_ongoing_requests": 1},
        "decode": {"engine": {"kv_cache_memory_bytes": ROOM_TOKENS * KV_BYTES_PER_TOKEN}},
        "ingress": {**CHANGES["ingress"], "keep_receipts": 100},
        "slo": {"interactive": {"ttft_s": TTFT_S, "ttft_per_prefill": 1.0, "tpot_s": 0.5}},
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(PACE_FILE_VARIABLE, str(folder / "pace"))
        running = Service(folder, changes)
    try:
        running.wait_until_ready()
        yield running
    finally:
        left = running.stop()
    assert not left


class Answer:
    """An answer, streamed or whole. Frames are parsed at the end: a client that is busy with the frames of one answer
    would ask late for the next one.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        prompt: str | list[int],
        tier: str,
        num_tokens: int,
        *,
        is_streamed: bool = False,
        path: str | None = None,
    ) -> None:
        """`path`: the only one that the request may take."""
        self._is_streamed = is_streamed
        self._body = {"model": "baton-demo", "prompt": prompt, "max_tokens": num_tokens, "temperature": 0}
        self._body |= {"ignore_eos": True, "stream": is_streamed, "service_tier": tier}
        self._headers = {"x-baton-path": path} if path else {}
        self._parts: list[bytes] = []
        self.has_begun = asyncio.Event()
        self.reading = asyncio.create_task(self._read(http))

    async def _read(self, http: httpx.AsyncClient) -> None:
        async with http.stream("POST", "/v1/completions", json=self._body, headers=self._headers) as response:
            assert response.is_success, (await response.aread()).decode()
            async for part in response.aiter_raw():
                self._parts.append(part)
                self.has_begun.set()

    @property
    def text(self) -> str:
        """Once the answer is there."""
        if not self._is_streamed:
            return str(json.loads(b"".join(self._parts))["choices"][0]["text"])
        lines = b"".join(self._parts).decode().splitlines()
        *frames, last = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert last == "[DONE]"
        return "".join(json.loads(frame)["choices"][0]["text"] for frame in frames)


def batch(http: httpx.AsyncClient, words: WordList, *, is_streamed: bool = False) -> Answer:
    return Answer(http, words.prompt, "flex", NUM_TOKENS, is_streamed=is_streamed)


async def test_batch_answers_pause_for_an_interactive_request_and_lose_no_token(small: Service) -> None:
    lists = [word_list(seed, NUM_PROMPT) for seed in range(NUM_BATCH)]
    right = [words.answer(NUM_TOKENS) for words in lists]
    async with httpx.AsyncClient(base_url=small.url, timeout=300) as http:
        for _ in range(2):  # the Scheduler learns how long these answers are
            for one in [batch(http, words) for words in lists]:
                await one.reading
        assert small.metric("baton_pauses_total") == 0

        # It keeps the prefill worker, and cannot pause there
        keeps = Answer(http, "Once", "flex", NUM_KEEPS, is_streamed=True, path="P")
        await keeps.has_begun.wait()
        several = [batch(http, words, is_streamed=words is lists[-1]) for words in lists]
        await several[-1].has_begun.wait()
        await asyncio.sleep(DECODED_FOR_S)
        await Answer(http, INTERACTIVE, "priority", 10).reading
        for one in several:
            await one.reading
        await keeps.reading
    assert [one.text for one in several] == right
    receipts = small.of_operators("/baton/receipts?last=100").json()["receipts"]
    (interactive,) = [receipt for receipt in receipts if receipt["slo_class"] == "interactive"]
    assert "paused" in interactive["placement"]["why"]
    assert interactive["result"] == "good"
    paused = [receipt for receipt in receipts if receipt["num_pauses"]]
    assert paused
    assert {(receipt["slo_class"], receipt["outcome"]) for receipt in paused} == {("batch", "finished")}
    assert small.metric("baton_pauses_total", slo_class="batch") == len(paused)
