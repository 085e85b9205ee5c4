"""Requests that are sent again, told from new ones, so that they find the response of the first try.

In Redis, for all replicas; what this replica has seen itself, it knows while Redis is away too.
"""

import hashlib
from typing import NamedTuple

from cachetools import TTLCache

from api.state.volatile import Volatile

KEPT_S = 600
MAX_HERE = 10_000


class Claim(NamedTuple):
    """Who has an idempotency key."""

    fingerprint: str
    """Of the request that was first: of another one, the key is in conflict."""
    response: str

    def __str__(self) -> str:
        return f"{self.fingerprint} {self.response}"


class Retries:
    def __init__(self, volatile: Volatile) -> None:
        self._volatile = volatile
        self._here: TTLCache[str, str] = TTLCache(MAX_HERE, KEPT_S)

    async def remember(self, tenant: str, fingerprint: str, response: str) -> None:
        """The last response to a request: who sends the same one again, later and on purpose, gets another."""
        name = f"baton:retry:{tenant}:{fingerprint}"
        self._here[name] = response
        await self._volatile.run(("SET", name, response, "EX", KEPT_S))

    async def running(self, tenant: str, fingerprint: str) -> str | None:
        """The response to a request, which may have ended by now."""
        name = f"baton:retry:{tenant}:{fingerprint}"
        answers = await self._volatile.run(("GET", name))
        found: str | None = answers[0].decode() if answers and answers[0] else self._here.get(name)
        return found

    async def claim(self, tenant: str, key: str, claim: Claim) -> Claim:
        """This one if the key is free, which it is not any more; else who has it."""
        name = _name_of_key(tenant, key)
        answers = await self._volatile.run(("SET", name, str(claim), "NX", "EX", KEPT_S), ("GET", name))
        told = answers[1].decode() if answers and answers[1] else None
        held = self._here[name] = told or self._here.get(name) or str(claim)
        return Claim(*held.split(" "))

    async def claim_anew(self, tenant: str, key: str, claim: Claim) -> None:
        """Whoever had it has made nothing of it."""
        name = _name_of_key(tenant, key)
        self._here[name] = str(claim)
        await self._volatile.run(("SET", name, str(claim), "EX", KEPT_S))


def _name_of_key(tenant: str, key: str) -> str:
    return f"baton:key:{tenant}:{hashlib.sha256(key.encode()).hexdigest()}"
