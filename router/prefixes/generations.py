"""Generations: how recently the blocks of the table were used, and which are to go.

A block belongs to the generation in which it was last used. A generation ends when it has as many blocks as its size.
When the table is full, its oldest generations expire: each as a whole and at once, so that no prefix is left with a
hole. A use of a block is a use of all blocks before it in its prompt, so a prompt never loses a block before those
that follow it.
"""

from typing import final


@final
class Generations:
    __slots__ = ("_num_blocks", "_places", "_size", "current", "num_live", "oldest")

    def __init__(self, size: int) -> None:
        """`size`: blocks of a generation."""
        self._size = size
        self.current = 0
        """The generation of blocks that are used now."""
        self.oldest = 0
        """The first generation that has not expired."""
        self.num_live = 0
        """Blocks that have not expired."""
        self._num_blocks: dict[int, int] = {0: 0}
        """Blocks by generation, in order."""
        self._places: dict[int, int] = {0: 0}
        """Places that blocks of each generation have had."""

    def add(self, num_blocks: int, places: int) -> None:
        """Blocks came into the current generation. `places`: where they are, as in their entries."""
        self._num_blocks[self.current] += num_blocks
        self._places[self.current] |= places
        self.num_live += num_blocks

    def remove(self, generation: int, num_blocks: int) -> None:
        """Blocks left a generation."""
        if generation >= self.oldest:
            self._num_blocks[generation] -= num_blocks
            self.num_live -= num_blocks

    def turn(self) -> bool:
        """Begin another generation if the current one has its size. Returns whether another one has begun."""
        if self._num_blocks[self.current] < self._size:
            return False
        self._begin()
        return True

    def expire(self, num_kept: int) -> int:
        """Expire the oldest generations, so that at most `num_kept` blocks are left. Returns the places of what has
        expired; some of its blocks may have left these places before.
        """
        places = 0
        while self.num_live > num_kept:
            generation = next(iter(self._num_blocks))
            if generation == self.current:
                self._begin()
            num_blocks = self._num_blocks.pop(generation)
            held = self._places.pop(generation)
            self.oldest = generation + 1
            if num_blocks:
                self.num_live -= num_blocks
                places |= held
        return places

    def clear(self, places: int) -> None:
        """No block is in any of these places any more."""
        for generation, held in self._places.items():
            self._places[generation] = held & ~places

    def validate(self, counted: dict[int, int]) -> None:
        """Assert every invariant. `counted`: blocks by generation, of all entries."""
        assert {g: n for g, n in counted.items() if g >= self.oldest} == {
            g: n for g, n in self._num_blocks.items() if n
        }
        assert self.num_live == sum(self._num_blocks.values())
        assert list(self._num_blocks) == sorted(self._num_blocks) and self.current == max(self._num_blocks)
        assert self._places.keys() == self._num_blocks.keys()

    def _begin(self) -> None:
        while (
            self._num_blocks and not self._num_blocks[oldest := next(iter(self._num_blocks))] and oldest < self.current
        ):
            del self._num_blocks[oldest], self._places[oldest]
        self.current += 1
        self._num_blocks[self.current] = self._places[self.current] = 0
