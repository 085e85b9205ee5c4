"""Workers that have vanished: silent for too long, or without an engine that answers. Workers that an operator drains,
that are about to be stopped, or that say that they leave are none of them.
"""

from typing import Final, final

from cluster.messages.ids import Pool, WorkerId

MAX_NEW: Final = 1000
"""Lost workers that wait to be counted. Further ones are not counted. Higher costs memory where nobody takes them, as
in the simulator; lower counts too few when a whole cluster is lost at once.
"""


@final
class LostWorkers:
    __slots__ = ("_new",)

    def __init__(self) -> None:
        self._new: list[tuple[Pool, WorkerId]] = []

    def note(self, pool: Pool, worker: WorkerId) -> None:
        if len(self._new) < MAX_NEW:
            self._new.append((pool, worker))

    def take_new(self) -> list[tuple[Pool, WorkerId]]:
        """The workers that were lost since the last call, with their pools."""
        if not self._new:
            return []
        new, self._new = self._new, []
        return new
