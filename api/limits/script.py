"""The calls of reserve.lua, and what it answers."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from api.limits import budget, counters, end_users
from api.limits.budget import Denied, Entry, Granted, Unseeded
from api.limits.counters import Room
from api.limits.limits import Amounts, tenant_prefix
from api.state.redis.client import RedisCall, RedisClient, RedisScript, ScriptAnswer

_NAMES = {
    counters: ("DAY_MS", "MINUTE_MS", "MOST_COUNTED", "MOST_MARKS"),
    budget: ("BUSY_MS", "KEPT_MS", "MOST_SETTLED", "OPEN_KEPT_MS", "SWEPT_AT_ONCE"),
    end_users: ("MOST_END_USERS",),
}
"""The constants of the model that the script has, too."""
_NOTHING = Amounts(0)
_DENIED, _GRANTED = 0, 1
"""The first part of an answer to `reserve`. Anything else is `Unseeded`."""


def script_text() -> str:
    values = {name: getattr(module, name) for module, names in _NAMES.items() for name in names}
    text = files(__package__).joinpath("reserve.lua").read_text()
    return f"local {', '.join(values)} = {', '.join(map(str, values.values()))}\n{text}"


class Unanswered(NamedTuple):
    """Redis is away, or too slow."""

    may_be_reserved: bool
    """Whether Redis has made the reservation, or may still make it."""


class ReservationScript:
    """Each call is one round trip, or a part of one."""

    def __init__(self, redis: RedisClient, text: str) -> None:
        self._redis = redis
        self._script = RedisScript.of(text)

    async def reserve(
        self, tenant: str, entry: Entry, lifetime_ms: int, seeds: Mapping[int, int] | None
    ) -> Granted | Denied | Unseeded | Unanswered:
        """`seeds`: as BudgetModel.reserve."""
        answer = await self._call("reserve", tenant, entry, lifetime_ms, seeds)
        if answer.value is None:
            return Unanswered(answer.may_have_run)
        what, now_ms, *rest = answer.value
        if what == _GRANTED:
            return Granted(now_ms, _rooms(rest))
        if what == _DENIED:
            return Denied(now_ms, _rooms(rest[2:]), rest[0], rest[1])
        return Unseeded(now_ms, rest)

    async def renew(self, tenant: str, entry: Entry, lifetime_ms: int) -> None:
        """Nothing happens while Redis is away."""
        await self._call("renew", tenant, entry, lifetime_ms)

    def begin_settling(self, tenant: str, entry: Entry, actual: Amounts, closed_at_ms: int) -> RedisCall | None:
        """Redis settles before it reserves what is asked for after this call. None while Redis is away."""
        return self._redis.begun(
            self._script, *_arguments("settle", tenant, entry, actual=actual, closed_at_ms=closed_at_ms)
        )

    async def settled(self, call: RedisCall | None) -> bool | None:
        """False if it was settled before, or too long ago. None if Redis is away."""
        answer = (await self._redis.answered(self._script, call)).value
        return None if answer is None else bool(answer[0])

    async def _call(
        self,
        operation: str,
        tenant: str,
        entry: Entry,
        lifetime_ms: int,
        seeds: Mapping[int, int] | None = None,
    ) -> ScriptAnswer:
        keys, *arguments = _arguments(operation, tenant, entry, lifetime_ms=lifetime_ms, seeds=seeds)
        return await self._redis.answer_of(self._script, keys, *arguments)


def _arguments(
    operation: str,
    tenant: str,
    entry: Entry,
    *,
    lifetime_ms: int = 0,
    actual: Amounts = _NOTHING,
    closed_at_ms: int = 0,
    seeds: Mapping[int, int] | None = None,
) -> tuple[Any, ...]:
    """The names that the script is called with, as a list, and its arguments."""
    keys = [f"{tenant_prefix(tenant)}open"]
    places = {keys[0]: 1}
    arguments: list[str | int] = [operation, entry.id, lifetime_ms, entry.taken_at_ms, closed_at_ms]
    arguments += [*entry.reserved, *actual, int(seeds is not None)]
    for index, bucket in enumerate(entry.buckets):
        if bucket.name not in places:
            keys.append(bucket.name)
            places[bucket.name] = len(keys)
        seed = seeds.get(index, "") if seeds else ""
        arguments += [places[bucket.name], bucket.kind.value, bucket.capacity, seed]
    return keys, *arguments


def _rooms(numbers: list[int]) -> list[Room]:
    return [Room(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
