"""An event loop whose time is virtual: it does not wait for the next timer, it moves the clock to it.

Runs what is ready in order of its scheduling and timers in order of their times, equal ones in order of their
scheduling: the same program gives the same run. There is no I/O and there are no threads; a loop that has neither a
ready callback nor a timer waits for nothing, which is an error.
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
    """The program waits for something that will never happen."""


class _Timer(asyncio.TimerHandle):
    """asyncio's own, without what a loop with threads and a debug mode needs: most of a run's objects are these."""

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
    """An error of a callback that is no task's ends the run."""

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
        """Of tasks that nobody waits for."""
        raise context.get("exception") or RuntimeError(context["message"])

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end. Tasks that it leaves behind are cancelled.

        Raises:
            Deadlock: nothing can happen any more and `main` has not ended.
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
