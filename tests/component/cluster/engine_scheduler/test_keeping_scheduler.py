"""vLLM's scheduler with Baton's retention: who finds the blocks of its last prompt, without a model."""

from typing import Any

import pytest
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request

from cluster.engine_scheduler.deadline_scheduler import AsyncDeadlineScheduler, DeadlineScheduler
from tests.component.cluster.engine_scheduler.stepping import BLOCK, Stepping

NUM_BLOCKS, PROMPT = 41, 160
"""Blocks of the engine with vLLM's null block, and tokens of a prompt: ten blocks."""
KINDS = pytest.mark.parametrize("kind", [DeadlineScheduler, AsyncDeadlineScheduler])


class Keeping(Stepping):
    """An engine with a prefix cache."""

    def __init__(self, share: float, kind: Any = DeadlineScheduler) -> None:
        super().__init__(NUM_BLOCKS, kind=kind, caches=True)
        self.scheduler.keep_at_most(share)
        hashing = get_hash_fn_by_name("sha256")
        kv_cache_utils.init_none_hash(hashing)
        self._hasher = kv_cache_utils.get_request_block_hasher(BLOCK, hashing)
        self._num = 0

    def answer(self, start: int, num_tokens: int = PROMPT) -> Request:
        """Answer the prompt of so many tokens from `start` on."""
        self._num += 1
        request = self.add_tokens(f"r{self._num}", range(start, start + num_tokens), self._hasher)
        self.until_done()
        return request

    def hits(self, start: int, num_tokens: int) -> int:
        """Blocks that the engine finds of such a prompt."""
        request = self.answer(start, num_tokens)
        return (num_tokens - self.computed(request.request_id)) // BLOCK

    def await_tools(self, request: Request) -> Any:
        last = request.num_prompt_tokens // BLOCK - 1
        return self.scheduler.await_tools(request.block_hashes[last][-8:], 0)


def chats(engine: Keeping, number: int = 4) -> None:
    for chat in range(number):
        engine.answer(10_000 + 1_000 * chat)


@KINDS
def test_conversation_that_waits_for_a_tool_finds_its_blocks_after_other_prompts(kind: Any) -> None:
    engine = Keeping(0.5, kind)
    assert engine.await_tools(engine.answer(0)).kept_blocks == PROMPT // BLOCK
    chats(engine)
    assert engine.hits(0, PROMPT + 1) == PROMPT // BLOCK


def test_conversation_that_waits_for_nothing_does_not() -> None:
    engine = Keeping(0.5)
    engine.answer(0)
    chats(engine)
    assert engine.hits(0, PROMPT + 1) == 0


def test_engine_that_keeps_nothing_is_vllms() -> None:
    engine = Keeping(0.0)
    assert engine.await_tools(engine.answer(0)).kept_blocks == 0
    chats(engine)
    assert engine.hits(0, PROMPT + 1) == 0


def test_kept_blocks_do_not_stop_a_prompt_that_needs_all_memory() -> None:
    engine = Keeping(0.5)
    engine.await_tools(engine.answer(0))
    engine.answer(10_000, (NUM_BLOCKS - 1) * BLOCK - 1)
    assert engine.hits(0, PROMPT + 1) == 0
    assert engine.await_tools(engine.answer(0)).taken_blocks == PROMPT // BLOCK


def test_conversation_that_does_not_come_back_is_let_go() -> None:
    engine = Keeping(0.5)
    engine.await_tools(engine.answer(0))
    engine._now += 100.0
    chats(engine, 8)
    assert engine.hits(0, PROMPT + 1) == 0


def test_next_step_ends_what_was_kept_for_it() -> None:
    engine = Keeping(0.5)
    engine.await_tools(engine.answer(0))
    assert engine.hits(0, PROMPT + BLOCK) == PROMPT // BLOCK
    counts = engine.await_tools(engine.answer(10_000))
    assert (counts.kept_blocks, counts.returned, counts.hit_blocks) == (PROMPT // BLOCK, 1, PROMPT // BLOCK)


def test_word_about_an_unknown_prompt_is_ignored() -> None:
    engine = Keeping(0.5)
    assert engine.scheduler.await_tools(b"unknown!", 0).kept_blocks == 0
