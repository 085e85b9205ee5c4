"""What a load is and what comes back, and the loop of the processes that put it on a system.

Such a process obeys three calls over a pipe: `prepare` a load, `run` it, `collect` what came. Apart from each other,
so that CPU time can be read just around the run.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol


@dataclass(frozen=True)
class Load:
    """A closed loop: `streams` requests are open at any time until `prompts` are used up."""

    prompts: tuple[str, ...]
    streams: int
    max_tokens: int
    port: int | None
    """Where the system listens on this machine; None for a system that is driven without HTTP."""


@dataclass(frozen=True)
class Trace:
    """One request. Times in seconds of its process's performance counter."""

    started_at: float
    arrivals: tuple[float, ...]
    """When tokens came: once for what came together, however many tokens that was."""
    tokens: int
    prompt_tokens: int
    answer_id: str = ""

    @property
    def ttft_s(self) -> float:
        return self.arrivals[0] - self.started_at

    @property
    def tpot_s(self) -> float | None:
        """None without a second token."""
        return (self.arrivals[-1] - self.arrivals[0]) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]


Request = Callable[[], Awaitable[Trace]]


class Client(Protocol):
    def prepare(self, load: Load) -> list[Request]:
        """Everything that can be done before the clock runs."""


async def obey(connection: Connection, calls: Any) -> None:
    """Serve the calls, methods of `calls`, until the other side closes the pipe. A call that fails is answered with its
    error.
    """
    connection.send(None)  # ready
    while True:
        try:
            name, arguments = await asyncio.to_thread(connection.recv)
        except EOFError:
            return
        try:
            connection.send(await getattr(calls, name)(*arguments))
        except (OSError, RuntimeError) as error:
            connection.send(RuntimeError(f"{type(error).__name__}: {error}"))


class ClosedLoop:
    """The calls for a `Load`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._load: Load | None = None
        self._requests: list[Request] = []
        self._traces: list[Trace] = []

    async def prepare(self, load: Load) -> None:
        self._load, self._traces = load, []
        self._requests = self._client.prepare(load)

    async def run(self) -> float:
        """Seconds that it took."""
        assert self._load is not None
        waiting = iter(self._requests)
        started_at = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as streams:
            for _ in range(self._load.streams):
                streams.create_task(self._stream(waiting))
        return asyncio.get_running_loop().time() - started_at

    async def collect(self) -> list[Trace]:
        return self._traces

    async def _stream(self, waiting: Any) -> None:
        for request in waiting:
            self._traces.append(await request())
