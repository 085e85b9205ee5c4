"""When the surviving engines have the KV blocks of the victim back, counted from the fault on. The clock looks at them
all the while, in a thread of its own.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import httpx

LOOK_INTERVAL_S = 0.25
"""Seconds between two looks. More makes the measured times coarser, less takes CPU time from the engines."""
LAST_LOOK_S = 60.0
"""Seconds that a look may take when the clock is stopped. A look waits for workers that hang."""

Look = Callable[[], dict[str, str | None]]
"""What each surviving engine has of the victim, in words: "" for nothing, None where it cannot be told, which
counts as something after `over`, and until then as what it had. May raise httpx.HTTPError.
"""


@dataclass(frozen=True)
class Back:
    """When an engine had nothing of the victim any more, in seconds since the fault. Both are 0.0 for an engine that no
    look found with any.
    """

    earliest_s: float
    """A look that ended then was the last one that found something."""
    latest_s: float
    """A look that ended then was the first one after it that found nothing."""


class KvClock:
    """Entered right before the fault. Until `over`, an engine that has nothing may come to have something again. From
    `over` on, an engine that has nothing is done: what it has after that belongs to others.
    """

    def __init__(self, look: Look, interval_s: float = LOOK_INTERVAL_S) -> None:
        self._look = look
        self._interval_s = interval_s
        self._struck_at = 0.0
        self._over_at: float | None = None
        self._held: dict[str, str] = {}
        self._back: dict[str, Back] = {}
        self._last_held_s: dict[str, float] = {}
        self._done: set[str] = set()
        self._stopping = threading.Event()
        self._all_done = threading.Event()
        self._looking = threading.Thread(target=self._keep_looking, daemon=True)

    def __enter__(self) -> Self:
        found = self._look()  # before the fault, which may make an engine silent that has blocks
        self._struck_at = time.monotonic()
        self._take(self._struck_at, found)
        self._looking.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._looking.join(LAST_LOOK_S)

    def over(self) -> float:
        """The fault is over, and the victim has ended. Returns the seconds since the fault."""
        self._over_at = time.monotonic()
        return self._over_at - self._struck_at

    def wait(self, timeout_s: float) -> dict[str, Back]:
        """When each engine had its blocks back, as far as looks tell that began after `over`.

        Raises:
            AssertionError: an engine has something still, or cannot be asked.
        """
        assert self._all_done.wait(timeout_s), f"still held: {self._held or 'it cannot be told'}"
        return self._back

    def _keep_looking(self) -> None:
        while not self._stopping.wait(self._interval_s) and not self._all_done.is_set():
            began_at = time.monotonic()
            with suppress(httpx.HTTPError):  # the replica that was asked has died: it cannot be told
                self._take(began_at, self._look())

    def _take(self, began_at: float, found: dict[str, str | None]) -> None:
        is_over = self._over_at is not None and began_at >= self._over_at
        now_s = time.monotonic() - self._struck_at
        for worker, what in found.items():
            if worker in self._done or (what is None and not is_over):
                continue
            if what != "":
                self._held[worker] = what or "cannot be asked"
                self._last_held_s[worker] = now_s
                continue
            if self._held.pop(worker, ""):
                self._back[worker] = Back(self._last_held_s[worker], now_s)
            self._back.setdefault(worker, Back(0.0, 0.0))
            if is_over:
                self._done.add(worker)
        if self._done == found.keys():
            self._all_done.set()
