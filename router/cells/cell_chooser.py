"""CellChooser: in which order an ingress asks its cells for a request. A cell is a Scheduler with its workers. Pure.

1. A request prefers the cell that its *key* names. The key is a block of its prompt that the requests of its
   conversation share and most other requests do not (router/cells/prefix_keys.py). All ingresses rank the cells of a
   key alike, without a word between them, and few keys move when a cell comes or goes.
2. A cell that has more than its share of the open requests of this ingress is passed over.
3. A request that is placed anew stays in its cell as long as that cell is open.

With one cell nothing is computed.
"""

from hashlib import blake2b
from math import log
from typing import Final, final

from cluster.messages.ids import CellName, RequestId
from cluster.messages.placement import PlacementRequest
from router.cells.prefix_keys import PrefixKeys

LOAD_BOUND: Final = 1.25
"""Most open requests of a cell, as a multiple of its share of the open requests of the ingress. Lower moves requests
away from the KV that their cell has of their prompts; higher loads the cells less evenly.
"""
SLACK: Final = 4.0
"""Open requests per unit of capacity that a cell may always have. Lower moves requests while the cells have room;
higher loads the cells less evenly.
"""


@final
class _Cell:
    __slots__ = ("capacity", "is_open", "load", "name", "seed")

    def __init__(self, name: CellName) -> None:
        self.name = name
        self.seed = name.encode()
        self.capacity = 1.0
        self.is_open = False
        self.load = 0
        """Open requests of this ingress."""


@final
class CellChooser:
    def __init__(self, load_bound: float = LOAD_BOUND) -> None:
        if not load_bound >= 1.0:
            raise ValueError(
                f"load_bound is {load_bound}, but the cells cannot all have less than their share: give 1 or more"
            )
        self._load_bound = load_bound
        self._cells: dict[CellName, _Cell] = {}
        self._cell_of: dict[RequestId, _Cell] = {}
        """The cell that has each open request, which may have been removed since."""
        self._keys = PrefixKeys()

    def set_cell(self, name: CellName, *, capacity: float, is_open: bool) -> None:
        """Add a cell, or change it. `capacity`: its workers. A cell that is not open drains or is away."""
        if not 0.0 < capacity < float("inf"):
            raise ValueError(f"cell {name!r} has a capacity of {capacity}: give a positive number")
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
            cells = self._ranked(cells, request)
            own = self._cell_of.get(request.request_id)
            if own is not None and own in cells:
                cells.remove(own)
                cells.insert(0, own)
        return [cell.name for cell in cells]

    def placed(self, request: PlacementRequest, name: CellName) -> None:
        """The request is in this cell from now on, and in no other one."""
        self.ended(request.request_id)
        cell = self._cells.get(name)
        if cell is None:  # it was removed while it answered
            cell = _Cell(name)
        cell.load += 1
        self._cell_of[request.request_id] = cell

    def ended(self, request_id: RequestId) -> None:
        """The request is open no more. Does nothing if it was never placed, or has ended before."""
        if (cell := self._cell_of.pop(request_id, None)) is not None:
            cell.load -= 1

    def cell_of(self, request_id: RequestId) -> CellName | None:
        """The cell that has an open request, even if the cell was removed since. None for any other request."""
        cell = self._cell_of.get(request_id)
        return None if cell is None else cell.name

    def _ranked(self, cells: list[_Cell], request: PlacementRequest) -> list[_Cell]:
        key = self._keys.key_of(request.block_hashes)
        if key is None:
            return sorted(cells, key=_crowding)
        ranked = sorted(cells, key=lambda cell: _distance(key, cell))
        per_unit = self._load_bound * (sum(cell.load for cell in cells) + 1) / sum(cell.capacity for cell in cells)
        most = max(per_unit, SLACK)
        free = [cell for cell in ranked if _crowding(cell) < most]
        full = [cell for cell in ranked if _crowding(cell) >= most]
        return free + sorted(full, key=_crowding)

    def validate(self) -> None:
        """Assert every invariant."""
        loads: dict[int, int] = {}
        for cell in self._cell_of.values():
            loads[id(cell)] = loads.get(id(cell), 0) + 1
        assert all(cell.load == loads.get(id(cell), 0) for cell in self._cells.values())
        self._keys.validate()


def _crowding(cell: _Cell) -> float:
    """Open requests per unit of capacity."""
    return cell.load / cell.capacity


def _distance(key: bytes, cell: _Cell) -> float:
    """Weighted rendezvous hashing: the cell with the least distance has the key. Each cell is the nearest one of a
    share of the keys that is proportional to its capacity, and its distance does not depend on the other cells.
    """
    digest = blake2b(key, digest_size=7, key=blake2b(cell.seed, digest_size=32).digest()).digest()
    uniform = (int.from_bytes(digest, "big") + 0.5) / 2.0**56
    return -log(uniform) / cell.capacity
