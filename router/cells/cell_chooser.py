"""CellChooser: in which order an ingress asks its cells for a request. A cell is a Scheduler with its workers. Pure.

1. A request prefers the cell that its *key* names: a block of its prompt that the requests of its conversation share
   and most others do not (router/cells/prefix_keys.py). All ingresses rank the cells of a key alike, without a word
   between them, and few keys move when a cell comes or goes.
2. A cell that has more than its share of the open work of this ingress is passed over.
3. A request that is placed anew stays in its cell as long as that cell is open.

With one open cell nothing is computed.
"""

from hashlib import blake2b
from math import log
from typing import Final, final

from cluster.messages.ids import CellName, RequestId
from cluster.messages.kv_events import BlockKey
from cluster.messages.placement import PlacementRequest
from router.cells.prefix_keys import PrefixKeys

LOAD_BOUND: Final = 1.25
"""Most open work of a cell, as a multiple of its share of the open work of the ingress. Lower moves requests away from
the KV that their cell has of their prompts; higher loads the cells less evenly.
"""
SLACK_TOKENS: Final = 80_000
"""Open work per worker that a cell may always have. Lower moves requests while their cell has room; higher loads the
cells less evenly.
"""
ANSWER_TOKENS: Final = 2_000
"""Prompt tokens that count as much work as an answer. Higher spreads requests by their number; lower spreads them by
their prompts alone.
"""
POPULAR_SHARE: Final = 0.25
"""Share of a cell's mean number of open requests that makes a prefix popular. Lower spreads the questions to one
document over cells; higher leaves more requests to one cell, whose load then sends them to others.
"""


@final
class _Cell:
    __slots__ = ("capacity", "is_open", "load", "name", "salt")

    def __init__(self, name: CellName) -> None:
        self.name = name
        self.salt = blake2b(name.encode(), digest_size=32).digest()
        self.capacity = 1.0
        self.is_open = False
        self.load = 0
        """Open work of this ingress, in tokens."""

    @property
    def crowding(self) -> float:
        """Open work per worker."""
        return self.load / self.capacity

    def distance(self, key: BlockKey) -> float:
        """Weighted rendezvous hashing: the key belongs to the cell with the least distance. Each cell is the nearest
        one of a share of the keys that is proportional to its capacity, and no distance depends on another cell.
        """
        digest = blake2b(key, digest_size=6, key=self.salt).digest()
        return -log((int.from_bytes(digest, "big") + 0.5) / 2.0**48) / self.capacity


@final
class _Open:
    """An open request, and the cell that has it."""

    __slots__ = ("cell", "counted", "work")

    def __init__(self, cell: _Cell, work: int, counted: list[BlockKey] | None) -> None:
        self.cell = cell
        self.work = work
        self.counted = counted
        """The prefixes that it counts for. None if it came while there was one cell."""
        cell.load += work


@final
class CellChooser:
    def __init__(self, load_bound: float = LOAD_BOUND) -> None:
        if not 1.0 <= load_bound < float("inf"):
            raise ValueError(
                f"load_bound is {load_bound}: give 1 or more, because cells cannot all be below their share"
            )
        self._load_bound = load_bound
        self._cells: dict[CellName, _Cell] = {}
        self._open: dict[RequestId, _Open] = {}
        self._keys = PrefixKeys()

    @property
    def num_remembered(self) -> int:
        """Blocks of prompts that the chooser remembers."""
        return self._keys.num_remembered

    def set_cell(self, name: CellName, *, capacity: float, is_open: bool) -> None:
        """Add a cell, or change it. `capacity`: its workers. A cell that is not open drains or is away."""
        if not 0.0 < capacity < float("inf"):
            raise ValueError(f"cell {name!r} has a capacity of {capacity}: give the number of its workers")
        cell = self._cells.get(name)
        if cell is None:
            cell = self._cells[name] = _Cell(name)
        cell.capacity, cell.is_open = capacity, is_open

    def remove_cell(self, name: CellName) -> None:
        """Forget a cell. Its open requests stay known until they end."""
        self._cells.pop(name, None)

    def order(self, request: PlacementRequest) -> list[CellName]:
        """All open cells, in the order in which they should be asked. Empty if none is open."""
        cells = [cell for cell in self._cells.values() if cell.is_open]
        if len(cells) > 1:
            cells = self._by_load(self._by_prefix(cells, request), work_of(request))
            own = self.cell_of(request.request_id)
            cells.sort(key=lambda cell: cell.name != own)
        return [cell.name for cell in cells]

    def placed(self, request: PlacementRequest, name: CellName) -> None:
        """The request is in this cell from now on, and in no other one."""
        self.ended(request.request_id)
        cell = self._cells.get(name)
        if cell is None:  # it was removed while it answered
            cell = _Cell(name)
        counted = None
        if (num_cells := len(self._cells)) > 1:
            counted = self._keys.opened(request.block_hashes, POPULAR_SHARE / num_cells)
        self._open[request.request_id] = _Open(cell, work_of(request), counted)

    def ended(self, request_id: RequestId) -> None:
        """The request is open no more. Does nothing if it was never placed, or has ended before."""
        if (known := self._open.pop(request_id, None)) is not None:
            known.cell.load -= known.work
            if known.counted is not None:
                self._keys.closed(known.counted)

    def cell_of(self, request_id: RequestId) -> CellName | None:
        """The cell that has an open request, even if the cell was removed since. None for any other request."""
        known = self._open.get(request_id)
        return None if known is None else known.cell.name

    def _by_prefix(self, cells: list[_Cell], request: PlacementRequest) -> list[_Cell]:
        """The cells in the order of the prompt's key. Without a key they are in the order of their load."""
        blocks = request.block_hashes
        key_at = self._keys.key_at(blocks)
        if key_at >= len(blocks):
            return sorted(cells, key=lambda cell: cell.crowding)
        key = blocks[key_at]
        return sorted(cells, key=lambda cell: cell.distance(key))

    def _by_load(self, cells: list[_Cell], work: int) -> list[_Cell]:
        """The cells with room in their order, and then the others by their load."""
        total, capacity = sum(cell.load for cell in cells) + work, sum(cell.capacity for cell in cells)
        most = max(self._load_bound * total / capacity, SLACK_TOKENS)
        full = [cell for cell in cells if cell.crowding >= most]
        return [cell for cell in cells if cell.crowding < most] + sorted(full, key=lambda cell: cell.crowding)

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        for cell in self._cells.values():
            assert cell.load == sum(known.work for known in self._open.values() if known.cell is cell)
        self._keys.validate()


def work_of(request: PlacementRequest) -> int:
    """What a request counts as load of its cell, in tokens."""
    return request.num_prompt_tokens + ANSWER_TOKENS * request.num_sequences
