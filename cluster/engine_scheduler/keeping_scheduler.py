"""vLLM's scheduler, which keeps the KV blocks of conversations that are likely to go on soon (router/retention/).

The scheduler sees each prompt that comes and each answer that ends, so it learns by itself how soon conversations come
back. Only that an answer has called tools must be told (`AWAIT`), because no engine reads text.
"""

from typing import Any
from zlib import crc32

import msgspec
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request, RequestStatus

from cluster.engine_core.engine_hints import AWAIT
from cluster.engine_scheduler.keeping_queue import KeptBlocks
from cluster.engine_scheduler.piping_scheduler import PipingScheduler
from cluster.messages.retention import RetentionCounts
from router.retention.kept_conversations import KeptConversations, WaitingConversation
from router.retention.return_times import ReturnTimes


def install() -> None:
    """Let the front of the engine call AWAIT. May be called again."""

    def await_tools(core: Any, mark: bytes, tools: int) -> None:
        core.scheduler.await_tools(mark, tools)

    setattr(EngineCore, AWAIT, await_tools)


class KeepingScheduler(PipingScheduler):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._conversations: KeptConversations | None = None
        """None if nothing is kept."""
        self._blocks: KeptBlocks | None = None
        self._returned: dict[str, WaitingConversation] = {}
        """Conversations whose next prompts wait for their blocks, by request id."""

    def keep_at_most(self, share: float) -> None:
        """Keep blocks in this share of the engine's KV memory from now on. Called before the first request."""
        pool = self.kv_cache_manager.block_pool
        most = int(share * pool.num_gpu_blocks)
        if most and pool.enable_caching:
            self._blocks = KeptBlocks(pool, self.kv_cache_manager.num_kv_cache_groups)
            self._conversations = KeptConversations(most, pool.num_gpu_blocks, self._blocks, ReturnTimes())

    def await_tools(self, mark: bytes, tools: int) -> None:
        """The answer to the prompt that ends with this block has called tools."""
        if self._conversations is not None:
            self._conversations.awaits(mark, tools, self._clock())

    def retention_counts(self) -> RetentionCounts:
        if self._conversations is None or self._blocks is None:
            return RetentionCounts()
        queue = self._blocks.queue
        return msgspec.structs.replace(
            self._conversations.counts, kept_blocks=queue.num_kept, taken_blocks=queue.num_taken
        )

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        if self._conversations is not None:
            conversation = self._conversations.came(request.block_hashes, _tenant_of(request), self._clock())
            if conversation is not None:
                self._returned[request.request_id] = conversation

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        if self._conversations is not None and (now := self._clock()) >= self._conversations.next_due:
            self._conversations.expire(now)
        output = super().schedule(throttle_prefills)
        if self._returned:
            for admitted in output.scheduled_new_reqs:
                self._admitted(admitted.req_id)
        return output

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        freed = super()._free_request(request, delay_free_blocks)
        if self._conversations is not None:
            self._admitted(request.request_id)
            if request.status is not RequestStatus.FINISHED_ABORTED:
                size = self.kv_cache_manager.block_pool.hash_block_size
                num_prompt = request.num_prompt_tokens // size
                chain = request.block_hashes[: request.num_computed_tokens // size]
                self._conversations.ended(chain, num_prompt, _tenant_of(request), self._clock())
        return freed

    def _admitted(self, request_id: str) -> None:
        """The request has its blocks, or has ended."""
        if self._conversations is not None and (conversation := self._returned.pop(request_id, None)) is not None:
            self._conversations.admitted(conversation)


def _tenant_of(request: Request) -> int:
    return crc32((request.cache_salt or "").encode())
