"""PlacedPrefixes: in which cell an ingress has placed prompts lately, by blocks of these prompts. Pure."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, final

from cluster.messages.ids import CellName
from cluster.messages.kv_events import BlockKey

MAX_BLOCKS: Final = 65_536
"""Blocks that are remembered, at most two for each request. Beyond it those that were not used for longest are
forgotten. More takes memory (some 200 bytes for each); fewer forgets the cells of conversations whose KV is cached.
"""


@final
class PlacedPrefixes:
    def __init__(self) -> None:
        self._cells: OrderedDict[BlockKey, CellName] = OrderedDict()
        """The block that was used last is the last one."""

    def __len__(self) -> int:
        return len(self._cells)

    def find(self, block_hashes: Sequence[BlockKey], key_at: int) -> CellName | None:
        """The cell of the longest prefix of a prompt that is remembered and contains the block at `key_at`."""
        cells = self._cells
        for index in range(len(block_hashes) - 1, key_at - 1, -1):
            if (cell := cells.get(block_hashes[index])) is not None:
                return cell
        return None

    def placed(self, block_hashes: Sequence[BlockKey], key_at: int, cell: CellName) -> None:
        """Remember the key of a prompt and its last block, unless the whole prompt is popular."""
        if key_at >= len(block_hashes):
            return
        for block in (block_hashes[key_at], block_hashes[-1]):
            self._cells[block] = cell
            self._cells.move_to_end(block)
        while len(self._cells) > MAX_BLOCKS:
            self._cells.popitem(last=False)
