"""Ends background tasks."""

import asyncio
from collections.abc import Iterable
from typing import Any

CANCEL_AGAIN_S = 1.0
"""Time after which a task is cancelled again that has not ended, in seconds. Longer ends the process later; shorter
cancels a task that is ending by itself.
"""


async def end_tasks(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel tasks, and wait until all have ended. A client of PostgreSQL or Redis may answer a cancellation with an
    error of its own, after which a task that repeats its work goes on: it is cancelled again.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
