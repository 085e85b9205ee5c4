"""Whether the memory of this machine holds all engines that are compared."""

import psutil

from bench.fronts import census
from bench.fronts.systems import System

SPARE_BYTES = 2 << 30
"""What is left for Ray, the router, the load generator and the rest of the machine. Higher refuses runs that would fit;
lower lets runs swap or be killed.
"""


def require_room(first: System, engines_up: int, engines_to_come: int) -> None:
    """Call it when the first system is up: its engines tell what one takes.

    Raises:
        RuntimeError: the others do not fit.
    """
    engine_bytes = sum(_used_bytes(process.pid) for process in census.processes() if process.system == first.name)
    refused = refusal(engine_bytes // engines_up, engines_to_come, psutil.virtual_memory().available)
    if refused:
        raise RuntimeError(refused)


def refusal(engine_bytes: int, engines_to_come: int, available_bytes: int) -> str | None:
    """Why the engines that are still to be started do not fit. None: they do."""
    needed_bytes = engine_bytes * engines_to_come + SPARE_BYTES
    if needed_bytes <= available_bytes:
        return None
    return (
        f"{engines_to_come} more engines of {_gib(engine_bytes)} each and {_gib(SPARE_BYTES)} beside them need"
        f" {_gib(needed_bytes)} of memory; {_gib(available_bytes)} are available: take fewer --workers"
    )


def _used_bytes(pid: int) -> int:
    """Its own, and its part of what it shares."""
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"
