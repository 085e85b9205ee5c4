"""CellStates: which cells take no new requests, in a key-value store that all nodes share.

An operator writes it (`baton cells`, cluster/cli/cells.py), and each ingress replica reads it in intervals
(cluster/clients/drain_watch.py). The state outlives the processes of the application, and not the store.
"""

from collections.abc import Iterable

from cluster.messages.ids import CellName
from cluster.scheduler_registry import KeyValueStore

_DRAINING = b"draining"


class CellStates:
    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    def drain(self, cell: CellName) -> None:
        """The cell takes no new requests from now on."""
        self._store.put(cell, _DRAINING)

    def open(self, cell: CellName) -> None:
        """The cell takes new requests. Does nothing if it has always taken them."""
        self._store.remove(cell)

    def draining(self, cells: Iterable[CellName]) -> frozenset[CellName]:
        """Those of the cells that take no new requests."""
        return frozenset(cell for cell in cells if self._store.get(cell) == _DRAINING)
