"""KvCache: the KV memory of one simulated engine, with its prefix cache. Pure.

The GPU has three kinds of tokens: those that one running request alone uses, blocks that are known by their hash and in
use, and blocks that are known and idle. When tokens are taken, idle blocks are evicted, the longest idle first. A host
tier behind the GPU gets every block as soon as it is known, as with vLLM's offloading connector, and keeps the blocks
used last.

Idle blocks that are kept (router/retention/) are spared when they would be evicted, and evicted after all others, as in
Baton's engines (cluster/engine_scheduler/keeping_queue.py).

Invariants: used and idle tokens never exceed the capacity; a block is idle exactly when no request holds it.
"""

from collections import OrderedDict
from collections.abc import Sequence

from cluster.messages.kv_events import KvChange, KvTier


class KvCache:
    __slots__ = (
        "_capacity",
        "_changes",
        "_holders",
        "_host",
        "_idle",
        "_kept",
        "_max_host_blocks",
        "_private",
        "_spared",
        "block_size",
        "num_taken",
    )

    def __init__(self, capacity_tokens: int, block_size: int, host_tokens: int = 0) -> None:
        self.block_size = block_size
        self._capacity = capacity_tokens
        self._private = 0
        self._holders: dict[bytes, int] = {}
        """Number of requests that use each known block."""
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        """Blocks that no request holds, and that were not spared."""
        self._spared: OrderedDict[bytes, None] = OrderedDict()
        """Kept blocks that no request holds, and that would have been evicted."""
        self._kept: set[bytes] = set()
        """Blocks that are spared."""
        self.num_taken = 0
        """Kept blocks that were evicted, because there were no others."""
        self._host: OrderedDict[bytes, None] = OrderedDict()
        """Blocks of the DRAM tier, least recently used first."""
        self._max_host_blocks = host_tokens // block_size
        self._changes: list[KvChange] = []

    @property
    def available_tokens(self) -> int:
        """Tokens that are free, or in blocks that no request holds."""
        num_held = len(self._holders) - len(self._idle) - len(self._spared)
        return self._capacity - self._private - num_held * self.block_size

    @property
    def used_share(self) -> float:
        return 1 - self.available_tokens / self._capacity

    @property
    def num_kept(self) -> int:
        """Blocks that are kept now, held or idle."""
        return sum(block in self._holders for block in self._kept)

    @property
    def has_changes(self) -> bool:
        return bool(self._changes)

    def match(self, block_hashes: Sequence[bytes], max_blocks: int) -> tuple[int, int]:
        """Blocks that a prompt finds on the GPU, from its start, and on the host after those."""
        holders, host = self._holders, self._host
        last = min(len(block_hashes), max_blocks)
        on_gpu = 0
        while on_gpu < last and block_hashes[on_gpu] in holders:
            on_gpu += 1
        end = on_gpu
        while end < last and block_hashes[end] in host:
            end += 1
        return on_gpu, end - on_gpu

    def hold(self, block_hashes: Sequence[bytes]) -> None:
        """Keep blocks that `match` found on the GPU."""
        holders = self._holders
        for block in block_hashes:
            if not holders[block]:
                del self._idle_with(block)[block]
            holders[block] += 1

    def release(self, block_hashes: Sequence[bytes]) -> None:
        """Stop using blocks. The end of a prompt counts as idle for longer than its start, because fewer prompts share
        it.
        """
        holders = self._holders
        for block in reversed(block_hashes):
            holders[block] -= 1
            if not holders[block]:
                self._idle[block] = None

    def take(self, num_tokens: int) -> None:
        """Take tokens for one request alone, at most `available_tokens`."""
        self._private += num_tokens
        over = self._private + len(self._holders) * self.block_size - self._capacity
        if over > 0:
            self._evict(-(-over // self.block_size))

    def give_back(self, num_tokens: int) -> None:
        self._private -= num_tokens

    def publish(self, block_hashes: Sequence[bytes], first: int) -> None:
        """Make the prompt's blocks from `first` on known, which one request has taken, computed, and holds from now on.
        If a block is already known, the request goes on with the known one.
        """
        holders = self._holders
        new = []
        for block in block_hashes[first:]:
            num_holders = holders.get(block)
            if num_holders is None:
                new.append(block)
                holders[block] = 1
                continue
            if not num_holders:
                del self._idle_with(block)[block]
            holders[block] = num_holders + 1
        self._private -= (len(block_hashes) - first) * self.block_size
        if new:
            self._changes.append(KvChange(KvTier.GPU, True, new))
        if self._max_host_blocks:
            self._keep_on_host(block_hashes, new)

    # ---- BlockOrder (router/retention/kept_conversations.py)

    def keep(self, blocks: Sequence[bytes]) -> None:
        self._kept.update(blocks)

    def let_go(self, blocks: Sequence[bytes]) -> None:
        self._kept.difference_update(blocks)
        for block in blocks:
            if block in self._spared:
                del self._spared[block]
                self._idle[block] = None
                self._idle.move_to_end(block, last=False)

    def take_first(self, blocks: Sequence[bytes]) -> None:
        for block in blocks:
            if block in self._idle:
                self._idle.move_to_end(block, last=False)

    # ---- what the Scheduler hears

    def changes(self) -> list[KvChange]:
        """The changes since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def snapshot(self) -> list[KvChange]:
        """All known blocks. `changes` goes on from here."""
        self._changes = []
        return [KvChange(KvTier.GPU, True, list(self._holders)), KvChange(KvTier.HOST, True, list(self._host))]

    def validate(self) -> None:
        """Assert every invariant. Tests call it."""
        assert self._private >= 0
        assert self._private + len(self._holders) * self.block_size <= self._capacity
        assert {block for block, number in self._holders.items() if not number} == {*self._idle, *self._spared}
        assert self._kept >= self._spared.keys()
        assert not self._spared.keys() & self._idle.keys()
        assert len(self._host) <= self._max_host_blocks

    def _evict(self, num_blocks: int) -> None:
        evicted: list[bytes] = []
        while self._idle and len(evicted) < num_blocks:
            block, _ = self._idle.popitem(last=False)
            if block in self._kept:
                self._spared[block] = None
            else:
                evicted.append(block)
        num_taken = num_blocks - len(evicted)
        evicted += [self._spared.popitem(last=False)[0] for _ in range(num_taken)]
        self.num_taken += num_taken
        for block in evicted:
            del self._holders[block]
        self._changes.append(KvChange(KvTier.GPU, False, evicted))

    def _idle_with(self, block: bytes) -> OrderedDict[bytes, None]:
        """The idle blocks that this idle block is one of."""
        return self._spared if block in self._spared else self._idle

    def _keep_on_host(self, block_hashes: Sequence[bytes], new: list[bytes]) -> None:
        host = self._host
        stored = [block for block in new if block not in host]
        host.update(dict.fromkeys(stored))
        for block in reversed(block_hashes):
            if block in host:
                host.move_to_end(block)
        over = len(host) - self._max_host_blocks
        if stored:
            self._changes.append(KvChange(KvTier.HOST, True, stored))
        if over > 0:
            self._changes.append(KvChange(KvTier.HOST, False, [host.popitem(last=False)[0] for _ in range(over)]))
