"""An event loop whose time is virtual: it does not wait for the next timer, it moves the clock to it.

Runs what is ready in order of its scheduling and timers in order of their times, equal ones in order of their
scheduling: the same program gives the same run. There is no I/O and there are no threads; a loop that has neither a
ready callback nor a timer waits for nothing, which is an error.
"""

import asyncio
from asyncio.events import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(RuntimeError):
    """The program waits for something that will never happen."""


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._ready_handles: deque[Handle] = deque()
        self._timers: list[tuple[float, int, TimerHandle]] = []
        self._num_timers = 0
        self._error: BaseException | None = None

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> Handle:
        handle = Handle(callback, args, self, context)
        self._ready_handles.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        handle = TimerHandle(when, callback, args, self, context)
        self._num_timers += 1
        heappush(self._timers, (when, self._num_timers, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody waits for ends the run."""
        self._error = self._error or context.get("exception") or RuntimeError(context["message"])

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """Cancelled timers leave the heap when their time comes."""

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end, or to an error that nobody waits for. Tasks that are left then are cancelled.

        Raises:
            Deadlock: nothing can happen any more and `main` has not ended.
        """
        asyncio.events._set_running_loop(self)
        task = self.create_task(main)
        try:
            self._run_until(task)
            return task.result()
        finally:
            self._cancel_others()
            asyncio.events._set_running_loop(None)
            self.close()

    def _cancel_others(self) -> None:
        self._error = None
        left = [task for task in asyncio.all_tasks(self) if task.cancel()]
        for task in left:
            self._run_until(task)

    def _run_until(self, task: "asyncio.Task[Any]") -> None:
        ready, timers = self._ready_handles, self._timers
        while not task.done():
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
            if self._error is not None:
                raise self._error
            if not timers:
                if task.done():
                    return
                raise Deadlock("nothing is ready and no timer is set")
            when, _, handle = heappop(timers)
            if not handle._cancelled:
                self._now = max(self._now, when)
                handle._run()
