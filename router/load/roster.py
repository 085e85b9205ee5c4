"""Roster: the workers for those that need no more than their names, by version: an ingress gets what has changed.

Every ingress keeps a copy, to place requests while the Scheduler is away. At a thousand workers the whole roster is
some hundred kilobytes, and a change of it some hundred bytes.
"""

from collections import deque
from typing import Final, final

from cluster.messages.ids import WorkerId
from cluster.messages.views import RosterChange, RosterEntry

MAX_CHANGES: Final = 4096
"""Changes that are remembered. An ingress that has missed more gets the whole roster. Higher costs memory, some 100
bytes for each; lower sends whole rosters more often while many workers come and go.
"""


@final
class Roster:
    __slots__ = ("_changes", "_entries", "_version")

    def __init__(self) -> None:
        self._entries: dict[WorkerId, RosterEntry] = {}
        self._version = 1
        self._changes: deque[tuple[int, WorkerId]] = deque(maxlen=MAX_CHANGES)
        """The worker that each of the last versions is about, the newest one last. Versions have no gaps."""

    def put(self, entry: RosterEntry) -> None:
        """The worker is there. No-op if it was there in the same way."""
        if self._entries.get(entry.worker) != entry:
            self._entries[entry.worker] = entry
            self._note(entry.worker)

    def remove(self, worker: WorkerId) -> None:
        """The worker is gone. No-op if it was not there."""
        if self._entries.pop(worker, None) is not None:
            self._note(worker)

    def since(self, version: int, num_links: int) -> RosterChange:
        """What has changed since a version; everything if the version is 0, or is not known here."""
        oldest = self._changes[0][0] - 1 if self._changes else self._version
        if not 0 < oldest <= version <= self._version:
            return RosterChange(0, self._version, list(self._entries.values()), [], num_links)
        changed: dict[WorkerId, None] = {}
        for number in range(1, self._version - version + 1):
            changed[self._changes[-number][1]] = None
        joined, left = list[RosterEntry](), list[WorkerId]()
        for worker in changed:
            entry = self._entries.get(worker)
            if entry is None:
                left.append(worker)
            else:
                joined.append(entry)
        return RosterChange(version, self._version, joined, left, num_links)

    def validate(self, workers: frozenset[WorkerId]) -> None:
        """Assert every invariant. `workers`: those that are there."""
        assert self._entries.keys() == workers
        numbers = [version for version, _ in self._changes]
        assert numbers == list(range(self._version - len(numbers) + 1, self._version + 1))

    def _note(self, worker: WorkerId) -> None:
        self._version += 1
        self._changes.append((self._version, worker))
