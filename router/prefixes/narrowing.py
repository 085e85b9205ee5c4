"""Narrowing: which workers hold the leading blocks of one prompt, found in one walk for all workers.

The mask of slots that hold every block so far narrows from block to block, until no slot is left.
"""

from typing import final

from router.prefixes.holder import single_bits


@final
class Hit:
    """The leading KV blocks of a prompt that a worker holds."""

    __slots__ = ("num_blocks", "num_gpu_blocks")

    def __init__(self, num_blocks: int, num_gpu_blocks: int) -> None:
        self.num_blocks = num_blocks
        """Blocks in any tier, counted from the start of the prompt without a gap."""
        self.num_gpu_blocks = num_gpu_blocks
        """Blocks in the engine's own memory, counted in the same way."""

    def __repr__(self) -> str:
        return f"Hit({self.num_blocks}, {self.num_gpu_blocks})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hit):
            return NotImplemented
        return self.num_blocks == other.num_blocks and self.num_gpu_blocks == other.num_gpu_blocks

    def __hash__(self) -> int:
        return hash((self.num_blocks, self.num_gpu_blocks))


@final
class Narrowing:
    __slots__ = ("_alive", "_behind", "_near", "depth", "found")

    def __init__(self, live: int) -> None:
        """`live`: the GPU bits of all slots."""
        self._alive = live
        """GPU bits of the slots that hold every block so far, in any tier."""
        self._near = live
        """GPU bits of the slots that hold every block so far in the engine's own memory."""
        self._behind: dict[int, int] = {}
        """Depths at which slots of `_alive` have left `_near`."""
        self.depth = 0
        """Blocks so far."""
        self.found: list[tuple[Hit, int]] = []
        """Hits of slots that lack a block, with the GPU bits of these slots."""

    def take(self, entry: int, end: int) -> bool:
        """The blocks up to `end` have this entry. Returns whether a slot is left."""
        alive, near = self._alive, self._near
        still = alive & (entry | entry >> 1 | entry >> 2)
        if still != alive:
            self._settle(alive ^ still)
            self._alive = still
            near &= still
            if not still:
                return False
        ahead = near & entry
        if ahead != near:
            for unit in single_bits(near ^ ahead):
                self._behind[unit] = self.depth
        self._near = ahead
        self.depth = end
        return True

    def end(self) -> None:
        """No slot holds another block."""
        self._settle(self._alive)

    def _settle(self, units: int) -> None:
        """These slots hold the first `depth` blocks, and not the next one."""
        depth, behind = self.depth, self._behind
        if not depth or not units:
            return
        if behind:
            for unit in [unit for unit in behind if unit & units]:
                self.found.append((Hit(depth, behind.pop(unit)), unit))
                units ^= unit
        if units:
            self.found.append((Hit(depth, depth), units))
