"""vLLM's scheduler with Baton's retention: who finds the blocks of its last prompt, without a model."""

from typing import Any

import pytest
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request, RequestStatus

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

    def begin(self, start: int, num_tokens: int = PROMPT, **wanted: Any) -> Request:
        """Ask the prompt of so many tokens from `start` on."""
        self._num += 1
        return self.add_tokens(f"r{self._num}", range(start, start + num_tokens), self._hasher, **wanted)

    def answer(self, start: int, num_tokens: int = PROMPT, salt: str | None = None) -> Request:
        request = self.begin(start, num_tokens, salt=salt)
        self.until_done()
        return request

    def hits(self, start: int, num_tokens: int) -> int:
        """Blocks that the engine finds of such a prompt."""
        request = self.answer(start, num_tokens)
        return (num_tokens - self.computed(request.request_id)) // BLOCK

    def await_tools(self, request: Request) -> Any:
        """What is kept after the answer to this request has called tools."""
        last = request.num_prompt_tokens // BLOCK - 1
        self.scheduler.await_tools(request.block_hashes[last][-8:], 0)
        return self.scheduler.retention_counts()

    @property
    def num_kept(self) -> int:
        kept: int = self.scheduler.retention_counts().kept_blocks
        return kept


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
    engine.scheduler.await_tools(b"unknown!", 0)
    assert engine.num_kept == 0


def test_answer_that_its_client_gave_up_is_not_kept() -> None:
    engine = Keeping(0.5)
    request = engine.begin(0, num_output=50)
    engine.step()
    engine.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    assert engine.await_tools(request).kept_blocks == 0


def test_blocks_are_not_kept_any_more_once_the_next_step_has_them() -> None:
    engine = Keeping(0.5)
    engine.await_tools(engine.answer(0))
    engine.begin(0, PROMPT + BLOCK, num_output=50)
    assert engine.num_kept == PROMPT // BLOCK
    engine.step()
    assert engine.num_kept == 0


def test_tenants_are_counted_apart() -> None:
    """The tools of one tenant take a minute. Those of another one are kept as long as before."""
    engine = Keeping(0.5)
    engine.await_tools(engine.answer(0, salt="slow"))
    engine._now += 50.0
    engine.answer(0, PROMPT + BLOCK, salt="slow")
    for salt in ("other", "slow"):
        engine.await_tools(engine.answer(5_000, salt=salt))
        engine._now += 40.0
        engine.answer(10_000)
        assert engine.num_kept == (PROMPT // BLOCK if salt == "slow" else 0)


def test_blocks_that_were_taken_do_not_count_as_kept() -> None:
    engine = Keeping(0.5)
    engine.await_tools(engine.answer(0))
    engine.answer(10_000, (NUM_BLOCKS - 1) * BLOCK - 1)
    assert engine.num_kept == 0
