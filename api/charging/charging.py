"""Makes the charge of each request: its limits, from the accounts and the config, and its place in the ledger."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from api.charging.charge import Recorder, RequestCharge, Reserver, Tell, settle_when_reserved
from api.identity.caller import Caller
from api.identity.principal import Principal
from api.identity.settings import NO_LIMITS
from api.limits.limits import Amounts, Bucket, ScopeKind, buckets_of
from api.metering.meter import Meter
from api.metering.usage import storable
from cluster.config.tenants.limits import Limits, LimitsConfig

MOST_REMEMBERED = 1000
"""API keys whose limits are remembered as they count for requests that name no end user. More takes memory, some
kilobytes each; fewer computes them again for requests of many keys, in some 0.1 ms each.
"""


class Charging:
    def __init__(
        self,
        limits: LimitsConfig,
        model: str,
        *,
        meter: Meter,
        recorder: Recorder,
        reserver: Reserver,
        hashed: Callable[[str], str],
    ) -> None:
        """`model`: the name of the served model. `hashed`: as in `scope_name` (api/limits/limits.py)."""
        self._limits = limits
        self._model = model
        self._meter = meter
        self._recorder = recorder
        self._reserver = reserver
        self._hashed = hashed
        self._remembered: dict[str, tuple[Principal, Caller, tuple[Bucket, ...]]] = {}
        """By API key: for whom its requests run, and what they draw on. The principal is another object once anything
        about the key has changed.
        """

    @property
    def has_prices(self) -> bool:
        """Whether anything costs something."""
        return self._meter.has_prices

    def charge(self, principal: Principal, end_user: str, tell: Tell, *, names_maximum: bool) -> RequestCharge:
        """Of a client's request. `end_user`: as the request names it; empty if it names nobody. `names_maximum`:
        whether it says how many tokens its answer may have at most.
        """
        caller, buckets = self._drawn_on(principal, end_user)
        return RequestCharge(
            caller,
            buckets,
            model=self._model,
            meter=self._meter,
            recorder=self._recorder,
            reserver=self._reserver,
            tell=tell,
            assumed_output_tokens=None if names_maximum else self._limits.assumed_output_tokens,
        )

    @asynccontextmanager
    async def counted(self, principal: Principal, tell: Tell) -> AsyncIterator[None]:
        """Count a client's request that generates nothing while the block runs: it draws on the limits of requests of
        its key, project, tenant and user, and on no other.

        Raises:
            RateLimited: a limit has no room.
            LimitsUnavailable: what is left of a limit is not known now.
        """
        caller, limits = _caller(principal, ""), self._limits_of(principal)
        del limits[ScopeKind.MODEL]
        buckets = buckets_of(caller, self._model, limits, self._hashed)
        drawn_on = tuple(bucket for bucket in buckets if bucket.kind.counts_requests)
        if not drawn_on:
            yield
            return
        self._meter.close_ended()
        one = Amounts(requests=1)
        reserving = asyncio.create_task(self._reserver.reserve(caller.tenant, drawn_on, one))
        try:
            tell((await asyncio.shield(reserving)).headers)
            yield
        finally:
            settle_when_reserved(reserving, one)

    def _drawn_on(self, principal: Principal, end_user: str) -> tuple[Caller, tuple[Bucket, ...]]:
        """For whom a request runs that generates, and the limits that it draws on."""
        name = "" if end_user else principal.key
        if name and (known := self._remembered.get(name)) is not None and known[0] is principal:
            return known[1], known[2]
        caller = _caller(principal, end_user)
        buckets = buckets_of(caller, self._model, self._limits_of(principal), self._hashed)
        if name:
            self._remembered.pop(name, None)
            while len(self._remembered) >= MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[name] = principal, caller, buckets
        return caller, buckets

    def _limits_of(self, principal: Principal) -> dict[ScopeKind, Limits]:
        settings, defaults = principal.settings, self._limits.defaults
        return {
            ScopeKind.KEY: principal.key_limits.over(defaults.key),
            ScopeKind.PROJECT: principal.project_limits.over(defaults.project),
            ScopeKind.TENANT: settings.limits.over(defaults.tenant),
            ScopeKind.END_USER: settings.end_user_limits.over(defaults.end_user),
            ScopeKind.MODEL: settings.model_limits.get(self._model, NO_LIMITS).over(defaults.model),
        }


def _caller(principal: Principal, end_user: str) -> Caller:
    caller = principal.caller(end_user)
    return msgspec.structs.replace(caller, end_user=storable(caller.end_user))  # as the ledger has it
