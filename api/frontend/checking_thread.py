"""The thread in which an ingress replica decodes and validates large request bodies, beside its event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_CHECKING = ThreadPoolExecutor(1, "baton-checking")
"""The pool has one thread: decoding and validation hold the interpreter lock, and with more threads the event loop
would get that lock less often.
"""


async def in_checking_thread(check: Callable[[], T]) -> T:
    """The result of `check`, which runs in the checking thread."""
    return await asyncio.get_running_loop().run_in_executor(_CHECKING, check)
