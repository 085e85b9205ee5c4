"""The ingress knows a KV block by the hash that the engines know it by."""

import asyncio
import random

import pytest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, maybe_convert_block_hash
from vllm.v1.request import Request

from cluster.config.pools import BLOCK_HASH_ALGORITHM
from cluster.engine.block_hashes import BLOCKS_AT_A_TIME, BlockHasher

PROMPT = [random.Random(0).randrange(100_000) for _ in range(150)]


def hashes(prompt: list[int], salt: str | None = None, block_size: int = 16) -> list[bytes]:
    return asyncio.run(BlockHasher(block_size).of_prompt(prompt, salt))


def in_an_engine(prompt: list[int], salt: str | None, block_size: int) -> list[bytes]:
    """As its events have them."""
    hasher = get_request_block_hasher(block_size, get_hash_fn_by_name(BLOCK_HASH_ALGORITHM))
    request = Request("r", prompt, SamplingParams(), None, cache_salt=salt, block_hasher=hasher)
    return [maybe_convert_block_hash(block_hash).to_bytes(8, "big") for block_hash in request.block_hashes]


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("salt", [None, "tenant"])
def test_hashes_are_the_engine_s(block_size: int, salt: str | None) -> None:
    assert hashes(PROMPT, salt, block_size) == in_an_engine(PROMPT, salt, block_size)


def test_only_full_blocks_have_a_hash() -> None:
    assert [len(hashes(PROMPT[:length])) for length in (0, 1, 15, 16, 17, 31, 32)] == [0, 0, 0, 1, 1, 1, 2]


def test_hash_depends_on_everything_before_the_block_and_nothing_after() -> None:
    other = [PROMPT[0] + 1, *PROMPT[1:]]
    assert hashes(PROMPT[:64]) == hashes(PROMPT)[:4]
    assert set(hashes(PROMPT)).isdisjoint(hashes(other))
    assert set(hashes(PROMPT)).isdisjoint(hashes(PROMPT, "tenant"))


def test_seed_of_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hashes(PROMPT)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert hashes(PROMPT) == before


async def test_long_prompt_lets_others_go_in_between() -> None:
    num_turns = 0

    async def others() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    prompt = PROMPT[:16] * (4 * BLOCKS_AT_A_TIME)
    assert len(await BlockHasher(16).of_prompt(prompt, None)) == 4 * BLOCKS_AT_A_TIME
    task.cancel()
    assert num_turns >= 3
