"""Thousands of short requests, clients that leave at any moment, and a worker killed every minute: in the end nothing
hangs, nothing is held, and no answer was wrong.
"""

import asyncio
import json
import logging
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
import pytest

from tests.drills.matrix import NUM_REPLICAS
from tests.drills.oracle import says_the_model_itself, text_of
from tests.drills.participants import MODEL
from tests.drills.processes import DECODE, PREFILL, LiveProcesses
from tests.drills.questions import Question, question
from tests.real_cluster.service import wait_for

logger = logging.getLogger("baton.soak")

SEED = 4
NUM_REQUESTS = 2000
CONCURRENCY = 16
ABORTED_SHARE = 0.15
ABORTED_WITHIN_S = 1.5
KILL_INTERVAL_S = 60.0
HUNG_AFTER_S = 60.0
PROGRESS_INTERVAL_S = 10.0
REFUSED_AT_MOST = 0.01
"""Of the requests: with a worker left in each pool, nearly all are placed anew."""
FREED_WITHIN_S = 10.0
WHOLE_WITHIN_S = 180.0

ANSWERED, LEFT, REFUSED, HUNG = "answered", "left", "refused", "hung"


@dataclass
class Tally:
    ended: Counter[str] = field(default_factory=Counter)
    doubtful: list[tuple[Question, str]] = field(default_factory=list)
    """Answers that are not what they should be: a failure, unless the model itself says the same (oracle.py)."""
    killed: list[str] = field(default_factory=list)

    @property
    def num_ended(self) -> int:
        return sum(self.ended.values())

    def __str__(self) -> str:
        ended = ", ".join(f"{number} {how}" for how, number in self.ended.most_common())
        return f"{self.num_ended} ended: {ended}; {len(self.doubtful)} doubtful; killed: {self.killed}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_soak(live: LiveProcesses) -> None:
    tally = Tally()
    async with httpx.AsyncClient(base_url=live.service.url, timeout=HUNG_AFTER_S) as http:
        disturbing = asyncio.create_task(_kill_a_worker_each_minute(live, tally))
        telling = asyncio.create_task(_tell_progress(tally))
        try:
            await _ask_everything(http, tally)
        finally:
            disturbing.cancel()
            telling.cancel()
            await asyncio.wait([disturbing, telling])
        logger.info("%s", tally)
        freed_s = await asyncio.to_thread(wait_for, lambda: _is_nothing_held(live), FREED_WITHIN_S)
        await asyncio.to_thread(live.wait_until_whole, NUM_REPLICAS, WHOLE_WITHIN_S)
        wrong = [text for asked, text in tally.doubtful if not await says_the_model_itself(http, asked, text)]
        logger.info("all blocks free after %.1f s; %d of %d wrong", freed_s, len(wrong), len(tally.doubtful))
    assert len(tally.killed) >= 2, "too short: nothing was disturbed"
    assert tally.num_ended == NUM_REQUESTS
    assert tally.ended.keys() <= {ANSWERED, LEFT, REFUSED}, tally
    assert tally.ended[REFUSED] <= REFUSED_AT_MOST * NUM_REQUESTS
    assert wrong == []


async def _ask_everything(http: httpx.AsyncClient, tally: Tally) -> None:
    numbers = iter(range(NUM_REQUESTS))

    async def ask_one_after_another() -> None:
        for number in numbers:
            await _ask(http, random.Random(f"{SEED} {number}"), tally)

    async with asyncio.TaskGroup() as clients:
        for _ in range(CONCURRENCY):
            clients.create_task(ask_one_after_another())


async def _ask(http: httpx.AsyncClient, rng: random.Random, tally: Tally) -> None:
    asked = question(MODEL, rng)
    leaves_after_s = rng.uniform(0, ABORTED_WITHIN_S) if rng.random() < ABORTED_SHARE else None
    try:
        async with asyncio.timeout(leaves_after_s or HUNG_AFTER_S):
            outcome, text = await _answer(http, asked)
    except TimeoutError:
        outcome, text = LEFT if leaves_after_s is not None else HUNG, ""
    except httpx.TransportError as error:
        outcome, text = f"connection: {error!r}", ""
    tally.ended[outcome] += 1
    if outcome == ANSWERED and not asked.is_right(text):
        tally.doubtful.append((asked, text))


async def _answer(http: httpx.AsyncClient, asked: Question) -> tuple[str, str]:
    async with http.stream("POST", asked.path, json=asked.body) as response:
        content = (await response.aread()).decode()
    if response.status_code == 503 and "retry-after" in response.headers:
        return REFUSED, ""
    if response.status_code != 200:
        return f"status {response.status_code}: {content}", ""
    if not asked.body["stream"]:
        return ANSWERED, text_of(json.loads(content))
    *frames, last = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(frame) for frame in frames]
    if last != "[DONE]" or any("error" in chunk for chunk in chunks):
        return f"broken stream: {frames[-1:]} {last}", ""
    return ANSWERED, "".join(text_of(chunk) for chunk in chunks)


async def _kill_a_worker_each_minute(live: LiveProcesses, tally: Tally) -> None:
    rng = random.Random(SEED)
    while True:
        await asyncio.sleep(KILL_INTERVAL_S)
        pool = rng.choice([PREFILL, DECODE])
        workers = await asyncio.to_thread(live.replicas, pool)
        victim = rng.choice(workers)
        logger.info("killing %s of %d", victim, len(workers))
        victim.process.kill()
        tally.killed.append(pool)


async def _tell_progress(tally: Tally) -> None:
    started_at = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL_S)
        logger.info("[%4.0f s] %s", time.monotonic() - started_at, tally)


def _is_nothing_held(live: LiveProcesses) -> bool:
    now = live.snapshot_of_the_living()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "baton_leases_open")
    return not any(now.total(name) for name in (*names, "baton_placed_requests"))
