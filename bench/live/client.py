"""The open loop on systems that speak HTTP: one process, plain sockets, every request sent when it is due.

Where a system has several servers, it chooses as a prefix-aware, least-loaded router would (`front_router.py`).
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import quantiles

import uvloop

from bench.fronts.http_client import FailedRequest, encoded, exchanged
from bench.fronts.load import obey
from bench.live.front_router import FrontRouter
from bench.live.goodput import Answer
from bench.live.mixes import Ask

LEAST_GAPS = 8
"""Times between tokens that have quartiles. Fewer follow chance; more leave short answers out."""
QUARTILES_APART = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
LIMIT_S = 30.0
"""Seconds after which a request is given up. Such a request has missed every SLO."""


@dataclass(frozen=True)
class OpenLoad:
    asks: Sequence[Ask]
    ports: Sequence[int]
    """Ports of the system's servers on this machine."""
    headers: Mapping[str, Mapping[str, str]]
    """HTTP headers by kind of request."""
    ttft_s: Mapping[str, float] | None = None
    """The TTFT objective by kind, in seconds, if requests carry when they are due as vLLM's priority."""
    most_open: int | None = None
    """How many requests of a closed loop are open at a time: each that ends makes room for the next."""


class OpenLoop:
    """The calls for an `OpenLoad`."""

    def __init__(self, model: str) -> None:
        self._model = model

    async def prepare(self, load: OpenLoad) -> None:
        self._load = load
        self._requests = [
            encoded(self._model, ask.messages, ask.max_tokens, load.headers.get(ask.kind, {}), _priority(ask, load))
            for ask in load.asks
        ]
        self._router = FrontRouter(load.ports)
        self._room = asyncio.Semaphore(load.most_open or len(load.asks) or 1)
        self._answers: list[Answer] = []

    async def run(self) -> float:
        """Seconds that it took."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._answer(ask, request, started_at))
                for ask, request in zip(self._load.asks, self._requests, strict=True)
            ]
        self._answers = [task.result() for task in tasks]
        return loop.time() - started_at

    async def collect(self) -> list[Answer]:
        """Collect the answers in the order of their requests."""
        return self._answers

    async def _answer(self, ask: Ask, request: bytes, started_at: float) -> Answer:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(started_at + ask.at_s - loop.time())
        async with self._room:
            late_s = loop.time() - started_at - ask.at_s
            port = self._router.opened(ask.messages[0])
            try:
                async with asyncio.timeout(LIMIT_S):
                    trace = await exchanged(port, request)
            except FailedRequest as error:
                return Answer(ask.kind, error.status, None, None, 0, 0, late_s, error=str(error))
            except (OSError, TimeoutError) as error:
                return Answer(ask.kind, 0, None, None, 0, 0, late_s, error=repr(error))
            finally:
                self._router.closed(port)
        return Answer(
            ask.kind,
            200,
            trace.ttft_s,
            trace.tpot_s,
            trace.prompt_tokens,
            trace.tokens,
            late_s,
            trace.answer_id,
            spread=_spread(trace.gaps_s),
        )


def _spread(gaps_s: Sequence[float]) -> float:
    """The quartiles tell nothing of the few gaps that are long or short because of HTTP."""
    if len(gaps_s) < LEAST_GAPS:
        return 0.0
    low, usual, high = quantiles(gaps_s)
    return (high - low) / QUARTILES_APART / usual


def _priority(ask: Ask, load: OpenLoad) -> int | None:
    """Milliseconds from the start of the load until the first token is due."""
    return None if load.ttft_s is None else round(1e3 * (ask.at_s + load.ttft_s[ask.kind]))


def main() -> None:
    descriptor, model = sys.argv[1:]
    uvloop.run(obey(Connection(int(descriptor)), OpenLoop(model)))


if __name__ == "__main__":
    main()
