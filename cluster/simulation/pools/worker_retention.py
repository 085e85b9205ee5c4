"""What a simulated worker keeps for conversations, with the rules of the real ones (router/retention/). Pure."""

from zlib import crc32

import msgspec

from cluster.messages.retention import RetentionCounts
from cluster.simulation.engine.engine_request import EngineRequest, Moment
from cluster.simulation.engine.engine_setting import EngineSetting
from cluster.simulation.engine.kv_cache import KvCache
from router.retention.kept_conversations import KeptConversations, WaitingConversation
from router.retention.return_times import ReturnTimes


class WorkerRetention:
    """Keeps nothing where the setting's share is 0."""

    def __init__(self, setting: EngineSetting, cache: KvCache) -> None:
        num_blocks = setting.kv_capacity_tokens // setting.block_size
        most = int(setting.kept_share * num_blocks)
        self._cache = cache
        self._kept = KeptConversations(most, num_blocks, cache, ReturnTimes()) if most else None
        self._returned: dict[EngineRequest, WaitingConversation] = {}

    @property
    def counts(self) -> RetentionCounts:
        if self._kept is None:
            return RetentionCounts()
        kept, taken = self._cache.num_kept, self._cache.num_taken
        return msgspec.structs.replace(self._kept.counts, kept_blocks=kept, taken_blocks=taken)

    def came(self, request: EngineRequest, tenant: str, now: float) -> None:
        kept = self._due(now)
        if kept is not None and (back := kept.came(request.block_hashes, _number_of(tenant), now)) is not None:
            self._returned[request] = back

    def happened(self, request: EngineRequest, moment: Moment, tenant: str, now: float) -> None:
        kept = self._due(now)
        if kept is None:
            return
        self.left(request)
        if moment is Moment.FINISHED or (moment is Moment.FIRST_TOKEN and request.keeps_kv):
            kept.ended(request.block_hashes, len(request.block_hashes), _number_of(tenant), now)

    def left(self, request: EngineRequest) -> None:
        """The request has its blocks, or waits no more."""
        if self._kept is not None and (back := self._returned.pop(request, None)) is not None:
            self._kept.admitted(back)

    def awaits(self, mark: bytes, tools: int, now: float) -> None:
        if (kept := self._due(now)) is not None:
            kept.awaits(mark, tools, now)

    def _due(self, now: float) -> KeptConversations | None:
        if self._kept is not None and now >= self._kept.next_due:
            self._kept.expire(now)
        return self._kept


def _number_of(tenant: str) -> int:
    return crc32(tenant.encode())
