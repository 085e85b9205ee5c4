"""The ingress knows a KV block by the hash that the engines know it by."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, maybe_convert_block_hash
from vllm.v1.request import Request

from cluster.config.pools import BLOCK_HASH_ALGORITHM
from cluster.engine.block_hashes import BLOCKS_AT_A_TIME, BlockHasher
from cluster.engine_core import public_prefix
from cluster.engine_core.engine_hints import extra_args

PROMPT = [random.Random(0).randrange(100_000) for _ in range(150)]


def hashes(prompt: list[int], salt: str | None = None, block_size: int = 16, num_public: int = 0) -> list[bytes]:
    return asyncio.run(BlockHasher(block_size).of_prompt(prompt, salt, num_public))


def in_an_engine(
    prompt: list[int], salt: str | None, block_size: int, num_public: int = 0, num_generated: int = 0
) -> list[bytes]:
    """As its events have them. `num_generated`: tokens at the end that are generated one by one."""
    public_prefix.install()
    hasher = get_request_block_hasher(block_size, get_hash_fn_by_name(BLOCK_HASH_ALGORITHM))
    params = SamplingParams(extra_args=extra_args(None, None, 0, num_public))
    asked = prompt[: len(prompt) - num_generated]
    request = Request("r", asked, params, None, cache_salt=salt, block_hasher=hasher)
    for token in prompt[len(asked) :]:
        request.append_output_token_ids(token)
    return [maybe_convert_block_hash(block_hash).to_bytes(8, "big") for block_hash in request.block_hashes]


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("salt", [None, "tenant"])
def test_hashes_are_the_engine_s(block_size: int, salt: str | None) -> None:
    assert hashes(PROMPT, salt, block_size) == in_an_engine(PROMPT, salt, block_size)


@given(
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=80),
    salt=st.sampled_from([None, "one", "two"]),
    block_size=st.sampled_from([4, 16]),
    num_public=st.integers(0, 90),
    data=st.data(),
)
def test_hashes_are_the_engine_s_for_any_public_part(
    prompt: list[int], salt: str | None, block_size: int, num_public: int, data: st.DataObject
) -> None:
    num_generated = data.draw(st.integers(0, len(prompt) - 1))
    found = in_an_engine(prompt, salt, block_size, num_public, num_generated)
    assert hashes(prompt, salt, block_size, num_public) == found


@given(
    prompt=st.lists(st.integers(0, 3), min_size=4, max_size=80),
    num_public=st.integers(0, 20).map(lambda blocks: 4 * blocks),
)
def test_tenants_share_the_public_blocks_and_no_others(prompt: list[int], num_public: int) -> None:
    one, two = (hashes(prompt, salt, 4, num_public) for salt in ("one", "two"))
    shared = num_public // 4
    assert one[:shared] == two[:shared]
    assert set(one[shared:]).isdisjoint(two)
    private = [of_tenant for salt in ("one", "two", None) for of_tenant in hashes(prompt, salt, 4)]
    assert set(private).isdisjoint(one[:shared])
    if num_public:
        assert set(private).isdisjoint(one + two)


@given(st.integers(1, 6).map(lambda blocks: 4 * blocks))
def test_a_longer_public_prefix_is_found_as_far_as_a_shorter_one_goes(num_public: int) -> None:
    shorter, longer = (hashes(PROMPT[:40], "one", 4, length) for length in (num_public, num_public + 4))
    shared = num_public // 4
    assert shorter[:shared] == longer[:shared]
    assert set(shorter[shared:]).isdisjoint(longer)


def test_prompt_without_a_salt_has_no_public_part() -> None:
    assert hashes(PROMPT, None, 16, 64) == hashes(PROMPT) == in_an_engine(PROMPT, None, 16, 64)


def test_public_part_that_is_shorter_than_a_block_changes_nothing() -> None:
    assert hashes(PROMPT, "tenant", 16, 15) == hashes(PROMPT, "tenant")


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
