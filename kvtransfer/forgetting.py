"""An engine forgets what it has pulled from one prefill worker, or under one lease, and nothing else; or all it caches.

It runs in the engine's core, between two steps (`install`). Blocks that were pulled, and blocks that were computed on
top of them (kvtransfer/block_origins.py), leave the prefix cache and the tiers. Requests that use such a block begin
anew with the tokens that they have; pulls from that worker that have not ended do not count. All other requests go on.
Unlike vLLM's own reset, it needs no block to be free: blocks that are lent stay as they are, and are not found again.
"""

import time
from collections.abc import Sequence
from typing import Any

from vllm.distributed.kv_events import AllBlocksCleared
from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_offload.base import OffloadKey, make_offload_key
from vllm.v1.request import Request, RequestStatus

from cluster.messages.ids import WorkerId
from kvtransfer.block_origins import BlockOrigins, first_of
from kvtransfer.handoff import LENDER, PulledBlocks
from kvtransfer.lease_terms import LeaseId
from kvtransfer.tiers.forgetting import Tiers

FORGET = "baton_forget"
"""The name under which the front of the engine calls the core: with a lender and a lease, with a lender alone, or with
nothing. The answer is False if it is not known which blocks came from the lender, so that nothing was forgotten.
"""


def install() -> None:
    """Let the front of the engine call FORGET. May be called again."""

    def forget(core: Any, lender: str | None, lease: str | None) -> bool:
        engine = CoreForgetting(core.scheduler)
        if lender is None:
            engine.forget_all()
            return True
        return engine.forget(PulledBlocks(WorkerId(lender), None if lease is None else LeaseId(lease)))

    setattr(EngineCore, FORGET, forget)


class Caches:
    """The prefix cache of an engine, and its tiers."""

    def __init__(self, scheduler: Scheduler) -> None:
        managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        self._pools: dict[BlockPool, None] = dict.fromkeys(manager.block_pool for manager in managers)
        self._groups = range(len(scheduler.kv_cache_config.kv_cache_groups))
        offloading = [getattr(c.connector_scheduler, "manager", None) for c in connectors_of(scheduler)]
        self._tiers = [Tiers(manager) for manager in offloading if manager is not None]

    def have(self, block_hash: bytes) -> bool:
        keys = [make_block_hash_with_group_id(block_hash, group) for group in self._groups]
        if any(pool.cached_block_hash_to_block.get_one_block(key) for pool in self._pools for key in keys):
            return True
        return any(tiers.has(key) for tiers in self._tiers for key in self._offloaded(block_hash))

    def forget(self, hashes: set[bytes]) -> None:
        for block_hash in hashes:
            for group in self._groups:
                key = make_block_hash_with_group_id(block_hash, group)
                for pool in self._pools:
                    while (block := pool.cached_block_hash_to_block.get_one_block(key)) is not None:
                        pool.evict_blocks({block.block_id})
        keys = [key for block_hash in hashes for key in self._offloaded(block_hash)]
        for tiers in self._tiers:
            tiers.forget(keys)

    def forget_all(self) -> None:
        for pool in self._pools:
            pool.cached_block_hash_to_block = BlockHashToBlockMap()
            pool.cached_block_hashes_by_block.clear()
            for block in pool.blocks:
                block.reset_hash()
            if pool.enable_kv_cache_events:
                pool.kv_event_queue.append(AllBlocksCleared())
        for tiers in self._tiers:
            tiers.forget_all()

    def drop_later(self) -> None:
        for tiers in self._tiers:
            tiers.drop_later()

    def _offloaded(self, block_hash: bytes) -> list[OffloadKey]:
        return [make_offload_key(block_hash, group) for group in self._groups]


class OriginLog:
    """The origins of an engine's blocks, as its connector for handoffs sees them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.caches: Caches | None = None
        """None until the scheduler is made, which is after its connector."""
        self.origins = BlockOrigins(lambda block_hash: self.caches is None or self.caches.have(block_hash))

    def pulls(self, request: Request, num_tokens: int) -> None:
        """The engine is about to pull so many tokens of the prompt."""
        params = request.kv_transfer_params or {}
        if num_tokens and (lender := params.get(LENDER)) is not None:
            num_local = max(0, int(params["remote_num_tokens"]) - num_tokens)
            handoff = PulledBlocks(WorkerId(lender), LeaseId(params["remote_request_id"]))
            self.origins.pulled(request.block_hashes[num_local // self._block_size :], handoff)

    def finished(self, request: Request) -> None:
        """The request has ended in any way."""
        self.origins.finished(request.block_hashes)
        if self.caches is not None:
            self.caches.drop_later()


class CoreForgetting:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        (log,) = [c.origin_log for c in connectors_of(scheduler) if hasattr(c, "origin_log")]
        self._log: OriginLog = log

    def forget(self, blocks: PulledBlocks) -> bool:
        """Forget these blocks. False if they are not known, and nothing was forgotten."""
        origins, caches = self._log.origins, self._log.caches
        requests: list[Request] = list(self._scheduler.requests.values())
        hashes = origins.of(blocks, [request.block_hashes for request in requests])
        if hashes is None or caches is None:
            return False
        for request in requests:
            if _will_pull(request, blocks):
                request.kv_transfer_params["do_remote_prefill"] = False
            if first_of(request.block_hashes, hashes) is not None:
                self._restart(request)
        caches.forget(hashes)
        origins.dropped(hashes)
        return True

    def forget_all(self) -> None:
        """Forget every block, in the prefix cache and in the tiers."""
        for request in list(self._scheduler.requests.values()):
            self._restart(request)
        if self._log.caches is not None:
            self._log.caches.forget_all()
        self._log.origins.clear()

    def _restart(self, request: Request) -> None:
        """Have a request computed anew, as vLLM does when it empties its cache or when a pull fails."""
        scheduler = self._scheduler
        if request.status is RequestStatus.RUNNING:
            scheduler.running.remove(request)
            scheduler._preempt_request(request, time.monotonic(), drop_stale_output=True)
            scheduler.prev_step_scheduled_req_ids.discard(request.request_id)
        elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            request.num_computed_tokens = 0
            scheduler.failed_recving_kv_req_ids.add(request.request_id)
        elif request.num_computed_tokens and not request.is_finished():
            scheduler._free_request_blocks(request)
            request.num_computed_tokens = 0


def connectors_of(scheduler: Scheduler) -> Sequence[Any]:
    return getattr(scheduler.connector, "_connectors", [scheduler.connector])  # MultiConnector's


def _will_pull(request: Request, blocks: PulledBlocks) -> bool:
    params = request.kv_transfer_params or {}
    is_of = params.get(LENDER) == blocks.lender and blocks.lease in (None, params.get("remote_request_id"))
    return is_of and bool(params.get("do_remote_prefill"))
