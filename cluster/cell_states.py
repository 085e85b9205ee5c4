"""CellStates: which cells take no new requests, in a key-value store that all nodes share.

An operator writes it (`baton cells`, cluster/cli/cells.py), and each ingress replica reads it in intervals
(cluster/clients/drain_watch.py). The state outlives the processes of the application, and not the store.
"""

from collections.abc import Collection, Iterable

from cluster.messages.ids import CellName
from cluster.scheduler_registry import KeyValueStore

_DRAINING = b"draining"


class CellStates:
    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    def drain(self, cell: CellName) -> None:
        """The cell takes no new requests from now on."""
        self._store.put(cell, _DRAINING)

    def drain_unless_last(self, cell: CellName, open_cells: Collection[CellName]) -> None:
        """As `drain`, where another one of `open_cells` takes new requests before and after. Two operators may drain
        two cells at the same time. So the state is read again after it was written, and the cell is opened again if
        the other operator was faster. Raises ValueError then.
        """
        others = frozenset(open_cells) - {cell}
        was_draining = cell in self.draining([cell])
        if self.draining(others) == others:
            raise ValueError(f"no other cell than {cell} is open: another one was drained just now")
        self.drain(cell)
        if not was_draining and self._all_drain(others, cell):
            self.open(cell)
            raise ValueError(
                f"cell {cell} was opened again, because another operator has drained the last other cell at the same "
                "time: look at `baton cells` and try again"
            )

    def _all_drain(self, others: frozenset[CellName], cell: CellName) -> bool:
        """Whether all others drain. The cell, which drains since just now, is opened again if that cannot be read."""
        try:
            return self.draining(others) == others
        except BaseException:
            self.open(cell)
            raise

    def open(self, cell: CellName) -> None:
        """The cell takes new requests. Does nothing if it has always taken them."""
        self._store.remove(cell)

    def draining(self, cells: Iterable[CellName]) -> frozenset[CellName]:
        """Those of the cells that take no new requests."""
        return frozenset(cell for cell in cells if self._store.get(cell) == _DRAINING)
