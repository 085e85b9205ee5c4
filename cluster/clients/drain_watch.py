"""DrainWatch: has an ingress notice which cells an operator drains and opens.

The watch reads the state (cluster/cell_states.py) in intervals. While the store cannot be reached, the last state that
was read stays.
"""

import asyncio
import logging
from collections.abc import Callable

from cluster.messages.ids import CellName

logger = logging.getLogger("baton.scheduling")

DRAIN_LOOK_S = 2.0
"""Time between two looks at which cells drain, in seconds. Longer sends new requests to a draining cell for longer;
shorter asks Ray's key-value store more often, once for each cell and ingress replica.
"""


class DrainWatch:
    def __init__(self, read: Callable[[], frozenset[CellName]], on_read: Callable[[frozenset[CellName]], None]) -> None:
        """`read` reads the state. It may block, so it runs in a thread, one call at a time. `on_read` is called with
        each state that differs from the one before, and again at the next look if it raises.
        """
        self._read = read
        self._on_read = on_read
        self._draining: frozenset[CellName] = frozenset()
        self._is_away = False
        """The last read has failed."""
        self._watching = asyncio.create_task(self._watch())

    def close(self) -> None:
        self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(DRAIN_LOOK_S)

    async def _look(self) -> None:
        try:
            draining = await asyncio.to_thread(self._read)
        except Exception as error:  # whatever the store raises, the last state stays
            if not self._is_away:
                logger.warning("it cannot be read which cells drain: %r", error)
            self._is_away = True
            return
        self._is_away = False
        if draining != self._draining:
            logger.warning("cells that take no new requests: %s", ", ".join(sorted(draining)) or "none")
            try:
                self._on_read(draining)
            except Exception:  # the watch must go on after any error
                logger.exception("the ingress does not follow which cells drain, and tries again")
                return
            self._draining = draining
