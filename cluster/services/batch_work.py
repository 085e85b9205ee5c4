"""Servers that do not interrupt the processes that ask them.

A process that writes to a socket wakes the server that reads from it. The kernel may run the server at once and on the
same core, before the writer goes on. An event loop that asks PostgreSQL or Redis then stands still until they have
answered, though it has other requests to serve, and though another core may be idle. Batch work (SCHED_BATCH) is woken
and interrupts nobody. It gets as much of the cores as before.
"""

import os
from contextlib import suppress


def as_batch_work(process_id: int) -> None:
    """Let the process, and those that it starts from now on, interrupt nobody. Nothing happens if it has ended, belongs
    to another user, or is in another container (0).
    """
    if process_id:  # 0 would mean the calling process
        with suppress(OSError):
            os.sched_setscheduler(process_id, os.SCHED_BATCH, os.sched_param(0))
