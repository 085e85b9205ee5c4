"""Single blocks of the DRAM and disk tiers that are dropped because their content is wrong. In the process of the
engine's scheduler.
"""

from collections.abc import Collection
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, OffloadingEvent, OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from kvtransfer.tiers.disk import DiskTier


class Tiers:
    """The tiers behind one engine. Forgotten blocks are not found from then on. Those that are being written or read
    are dropped later, by `drop_later`.
    """

    def __init__(self, manager: Any) -> None:
        """`manager`: vLLM's offloading manager."""
        self._dram: CPUOffloadingManager = getattr(manager, "primary_tier", manager)
        self._disks = [tier for tier in getattr(manager, "secondary_tiers", ()) if isinstance(tier, DiskTier)]
        self._busy: set[OffloadKey] = set()
        """Blocks in DRAM that are forgotten and not dropped yet."""
        self._lookup_in_dram = self._dram.lookup
        self._dram.lookup = self._lookup  # vLLM's manager has no hook

    def has(self, key: OffloadKey) -> bool:
        """Whether the block is in DRAM, or was written to a disk by this engine."""
        return self._dram._policy.get(key) is not None or any(disk.has_written(key) for disk in self._disks)

    def forget(self, keys: Collection[OffloadKey]) -> None:
        for disk in self._disks:
            disk.forget(keys)
        self._drop(keys)

    def forget_all(self) -> None:
        """Forget every block that this engine has stored."""
        for disk in self._disks:
            disk.forget_all()
        self._drop(list(self._dram._policy.chunks))

    def drop_later(self) -> None:
        """Drop what can be dropped by now."""
        if self._busy:
            self._drop(list(self._busy))

    def _drop(self, keys: Collection[OffloadKey]) -> None:
        dram, dropped = self._dram, list[OffloadKey]()
        for key in keys:
            chunk = dram._policy.get(key)
            if chunk is not None and chunk.ref_cnt:  # -1 while it is written
                self._busy.add(key)
                continue
            self._busy.discard(key)
            if chunk is not None:
                dram._policy.remove(key)
                dram._num_evictable_cache_chunks -= 1
                dram._free_chunk(chunk)
                dropped.append(key)
        if dropped and dram.events is not None:
            dram.events.append(OffloadingEvent(keys=dropped, medium=dram.medium, removed=True))

    def _lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.MISS if key in self._busy else self._lookup_in_dram(key, req_context)
