"""The garbage collector of the Scheduler's process.

Requests, workers and blocks have no reference cycles: reference counts free them. Python's collector would walk all of
them again and again, and one walk over some ten thousand open requests takes a tenth of a second.
"""

import gc

YOUNG_OBJECTS = 20_000
"""Containers by which those that were made outnumber those that were freed, until the young ones are walked. More keeps
cycles for longer, as exceptions make them; fewer walks more often.
"""
OLD_WALKS = 1000
"""Walks over the middle generation for each one over all objects. More keeps old cycles for longer; fewer stops
placements for a tenth of a second more often.
"""


def collect_rarely() -> None:
    """To be called when the process has loaded what it needs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, OLD_WALKS)
