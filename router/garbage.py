"""The garbage collector of the Scheduler's process.

Requests, workers and blocks have no reference cycles: reference counts free them. Python's collector would walk all of
them again and again, and one walk over some ten thousand open requests takes a tenth of a second. So the collector
walks what is new at short intervals, and sets aside what has survived one walk (`gc.freeze`). A full walk finds the
cycles that were old already when they were left: those of exceptions and closed connections.

The collector's own threshold would not do. It counts what was made less what was freed, so that a steady load has new
objects by the hundred thousand before one walk.
"""

import asyncio
import gc
from typing import Final

YOUNG_WALK_S: Final = 0.05
"""Time between two walks over what is new, in seconds. Longer stops placements for longer, by a millisecond for each
hundred placements between; shorter costs an idle Scheduler more, some 15 us a walk.
"""
FULL_WALK_S: Final = 3600.0
"""Time between two walks over all objects, in seconds. Longer keeps old cycles for longer; shorter stops placements
more often, for some tenths of a second in a cluster of a thousand workers.
"""


def collect_rarely() -> None:
    """To be called on the event loop when the process has loaded what it needs."""
    gc.disable()
    _walk_all()
    _walk_young()


def _walk_all() -> None:
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    asyncio.get_running_loop().call_later(FULL_WALK_S, _walk_all)


def _walk_young() -> None:
    gc.collect(0)
    gc.freeze()
    asyncio.get_running_loop().call_later(YOUNG_WALK_S, _walk_young)
