"""An event loop whose time is virtual: the loop does not wait for its next timer, but moves the clock to that timer.

Ready callbacks run in the order in which they were scheduled. Timers run in order of their times, and timers of the
same time in the order in which they were set. So the same program gives the same run. The loop has no I/O and no
threads. A loop that has neither a ready callback nor a timer can never go on, which is an error.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(RuntimeError):
    """The program waits, but the loop has nothing ready and no timer, so the wait never ends."""


class _Timer(asyncio.TimerHandle):
    """A handle without asyncio's support for threads and debug mode, because most objects of a run are handles."""

    __slots__ = ()

    def __init__(self, when: float, callback: Callable[..., object], args: Sequence[Any], context: Context) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True


class VirtualLoop(asyncio.BaseEventLoop):
    """A single-threaded event loop on virtual time, in seconds from 0. An error outside a task ends the run."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._soon: deque[_Timer] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._num_timers = 0
        self._outside = copy_context()

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(self._now, callback, args, context or self._outside)
        self._soon.append(timer)
        return timer

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, context or self._outside)
        self._num_timers += 1
        heappush(self._timers, (when, self._num_timers, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise an error that asyncio would only log, such as that of a task whose result is never read."""
        raise context.get("exception") or RuntimeError(context["message"])

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end, cancel the tasks that `main` leaves behind, and close the loop.

        Raises:
            Deadlock: no callback is ready and no timer is set, but `main` has not ended.
        """
        asyncio.events._set_running_loop(self)
        try:
            task = self.create_task(main)
            self._run_until(task)
            return task.result()
        finally:
            left = asyncio.all_tasks(self)
            for other in left:
                other.cancel()
            for other in left:
                self._run_until(other)
            asyncio.events._set_running_loop(None)
            self.close()

    def _run_until(self, task: "asyncio.Task[Any]") -> None:
        soon, timers = self._soon, self._timers
        while not task.done():
            while soon:
                timer = soon.popleft()
                if not timer._cancelled:
                    timer._context.run(timer._callback, *timer._args)
            if task.done():
                return
            if not timers:
                raise Deadlock("nothing is ready and no timer is set")
            when, _, timer = heappop(timers)
            if not timer._cancelled:
                if when > self._now:
                    self._now = when
                timer._context.run(timer._callback, *timer._args)
