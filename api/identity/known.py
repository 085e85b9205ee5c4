"""What an ingress replica remembers of accounts: bounded, and asked for together.

One query is in flight at a time, for all names that are asked for meanwhile. So a burst of requests with keys that the
replica does not remember costs a few queries, and names that nobody has cost no more memory than the bounds allow.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

from cluster.errors import StateUnavailable

logger = logging.getLogger("baton.identity")

MAX_REMEMBERED = 10_000
"""Names that are remembered, and as many that are known not to exist. An entry has about a kilobyte. More takes memory;
fewer asks the database again for keys that are in use.
"""
ASKED_AT_ONCE = 500
"""Names of one query. More makes each query, and who waits for it, slower; fewer makes more queries of a burst."""
MAX_WAITING = 1024
"""Requests that wait for a query. More keeps more clients waiting for a slow database; fewer refuses requests of a
burst.
"""
PATIENCE_S = 3.0
"""How long a request waits for its query, in seconds. Shorter refuses clients of a busy database; longer keeps clients
waiting that are refused anyway.
"""
RETRY_AFTER_S = 2.0
"""The Retry-After of a request whose credential cannot be checked, in seconds. Shorter brings more requests during an
outage; longer keeps clients away after it.
"""


class OfTenant(Protocol):
    @property
    def tenant(self) -> str: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=OfTenant)


class Known(Generic[K, V]):
    """Values by name, such as keys by their digest."""

    def __init__(self, look_up: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]], one_at_a_time: asyncio.Lock) -> None:
        """`one_at_a_time`: held during each query, so that no answer is older than the one before it."""
        self._look_up = look_up
        self._one_at_a_time = one_at_a_time
        self._found: OrderedDict[K, V] = OrderedDict()
        self._absent: OrderedDict[K, None] = OrderedDict()
        self._waiting: dict[K, asyncio.Future[V | StateUnavailable | None]] = {}
        """The answer of each name that a request waits for. Names whose requests have all left are not asked for."""
        self._waiting_for: Counter[K] = Counter()
        """The requests that wait for each name."""
        self._num_waiting = 0
        self._asking: asyncio.Task[None] | None = None

    def remembered(self, name: K) -> V | None:
        found = self._found.get(name)
        if found is not None:
            self._found.move_to_end(name)
        return found

    def is_absent(self, name: K) -> bool:
        """Whether nothing had this name when it was last asked for."""
        return name in self._absent

    async def ask(self, name: K) -> V | None:
        """What has this name now; None if nothing has. Raises StateUnavailable."""
        if self._num_waiting >= MAX_WAITING:
            raise StateUnavailable(f"{MAX_WAITING} requests wait for their credentials to be checked", RETRY_AFTER_S)
        answer = self._waiting.get(name)
        if answer is None:
            answer = self._waiting[name] = asyncio.get_running_loop().create_future()
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_for_all())
        self._num_waiting += 1
        self._waiting_for[name] += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                found = await asyncio.shield(answer)
        except TimeoutError:
            raise unchecked() from None
        finally:
            self._leave(name)
        if isinstance(found, StateUnavailable):
            raise unchecked() from found
        return found

    async def refresh(self, tenants: frozenset[str] | None) -> None:
        """Ask again for what is remembered of these tenants; None for all. Until it is known, requests are answered by
        what was known before. What did not exist may exist now. Raises StateUnavailable.
        """
        self._absent.clear()
        names = [name for name, value in self._found.items() if tenants is None or value.tenant in tenants]
        for first in range(0, len(names), ASKED_AT_ONCE):
            await self._ask_for(names[first : first + ASKED_AT_ONCE])

    async def close(self) -> None:
        """End the query in flight. Requests that wait are refused."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def _leave(self, name: K) -> None:
        """A request waits for this name no more."""
        self._num_waiting -= 1
        self._waiting_for[name] -= 1
        if not self._waiting_for[name]:
            del self._waiting_for[name]
            self._waiting.pop(name, None)

    async def _ask_for_all(self) -> None:
        """Ask for what is waited for, until nothing is."""
        try:
            while self._waiting:
                names = list(islice(self._waiting, ASKED_AT_ONCE))
                try:
                    answers: Mapping[K, V] | StateUnavailable = await self._ask_for(names)
                except StateUnavailable as error:
                    answers = error
                except Exception:
                    logger.exception("credentials could not be looked up")
                    answers = unchecked()
                for name in names:
                    found = answers if isinstance(answers, StateUnavailable) else answers.get(name)
                    if (waited_for := self._waiting.pop(name, None)) is not None:
                        waited_for.set_result(found)
        finally:
            self._asking = None
            for answer in self._waiting.values():
                answer.set_result(unchecked())
            self._waiting.clear()

    async def _ask_for(self, names: Sequence[K]) -> Mapping[K, V]:
        """Ask, and remember the answers. Raises StateUnavailable."""
        async with self._one_at_a_time:
            found = await self._look_up(names)
        for name in names:
            self._found.pop(name, None)
            self._absent.pop(name, None)
            if name in found:
                self._found[name] = found[name]
            else:
                self._absent[name] = None
        for remembered in (self._found, self._absent):
            while len(remembered) > MAX_REMEMBERED:
                remembered.popitem(last=False)
        return found


def unchecked() -> StateUnavailable:
    return StateUnavailable("the credential of the request cannot be checked now: try again", RETRY_AFTER_S)
