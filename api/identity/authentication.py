"""Who asks, by the credential of a request: an API key, or a token of an OIDC issuer.

A replica answers from memory. Twice a second it asks for the version of the accounts, and when that has grown, for
what it remembers of the tenants with changes. So a revocation counts on every replica within a second, and a new key
works at once.

While the accounts cannot be reached, keys that the replica knows go on for `offline_s`, counted from the last time at
which it has seen the newest version. All others are refused with a 503, never with a 401: a client that gets a 401
gives its key up.
"""

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from api.identity.keys import digest, handle_in, invalid_key, shown
from api.identity.known import K, Known, V
from api.identity.oidc import OidcTokens, is_token
from api.identity.ports import AccountsPort, AccountStanding
from api.identity.principal import Principal
from cluster.ending import end_tasks
from cluster.errors import Forbidden, ServingError, StateUnavailable

logger = logging.getLogger("baton.identity")

FOLLOW_S = 0.5
"""Time between two looks at the version of the accounts, in seconds. Shorter asks the database more often; longer lets
revoked keys work for longer.
"""
MAX_FOLLOW_S = 2.0
"""The longest time between two looks while they fail, in seconds. Shorter logs more lines during an outage; longer
learns later what has changed meanwhile.
"""
ABSENT_S = 2.0
"""How long after the last look a key counts as unknown because it was unknown before, in seconds. Shorter asks the
database more often for unknown keys; longer refuses a key with 401 that was made while the accounts could not be
reached.
"""
TOUCH_S = 60.0
"""Time between two writes of when keys were last used, in seconds. Shorter writes more rows; longer shows older times.
"""


class Authentication:
    def __init__(
        self,
        accounts: AccountsPort,
        clock: Callable[[], float],
        offline_s: float,
        tokens: OidcTokens | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: gives the Unix time. `offline_s`: as in the config section `identity:`. `tokens`: None if no tokens
        are accepted. `monotonic`: gives a time in seconds that is never set back.
        """
        self._accounts = accounts
        self._clock = clock
        self._monotonic = monotonic
        self._offline_s = offline_s
        self._tokens = tokens
        one_at_a_time = asyncio.Lock()
        self._keys = Known(accounts.look_up, one_at_a_time)
        self._projects = Known(accounts.look_up_projects, one_at_a_time)
        self._one_at_a_time = one_at_a_time
        self._version: int | None = None
        """The version that all that is remembered has at least. None if a look has failed, or there was none."""
        self._seen_at = float("-inf")
        """The monotonic time at the begin of the last look that has succeeded."""
        self._used: dict[str, float] = {}
        """Unix times at which keys were last used, by their ids, since they were last written."""
        self._jobs: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to follow the accounts."""
        jobs = [self._follow(), self._write_uses()]
        if self._tokens is not None:
            jobs.append(self._tokens.keep_keys())
        self._jobs = [asyncio.create_task(job) for job in jobs]

    async def close(self) -> None:
        await end_tasks(self._jobs)
        await self._keys.close()
        await self._projects.close()
        if self._tokens is not None:
            await self._tokens.close()

    async def identify(self, credential: str) -> Principal:
        """Who asks. A credential that the replica remembers is answered without a wait.

        Raises:
            Unauthorized: the credential is not valid, or not any more.
            Forbidden: the tenant is suspended, or the project is archived.
            StateUnavailable: the credential cannot be checked now.
            ServingError: what is stored of the tenant cannot be read.
        """
        if is_token(credential):
            return await self._bearer_of(credential)
        handle = handle_in(credential)
        key = await self._found(self._keys, digest(credential))
        if key is None:
            raise invalid_key(f"{shown(handle)} is unknown to this service")
        if key.is_revoked:
            raise invalid_key(f"{shown(handle)} has been revoked")
        now = self._clock()
        if key.expires_at is not None and now >= key.expires_at:
            raise invalid_key(f"{shown(handle)} has expired")
        _check(key.standing, key.principal)
        self._used[key.principal.key] = now
        return key.principal

    async def _bearer_of(self, token: str) -> Principal:
        if self._tokens is None:
            raise invalid_key("this service accepts API keys, and no tokens")
        subject = await self._tokens.subject(token, self._clock())
        project = await self._found(self._projects, subject.project)
        if project is None:
            raise Forbidden("the token names a tenant or a project that does not exist", None, "unknown_tenant")
        _check(project.standing, project.principal)
        return msgspec.structs.replace(project.principal, rights=subject.rights, end_user=subject.end_user)

    async def _found(self, known: Known[K, V], name: K) -> V | None:
        """Raises StateUnavailable."""
        age_s = self._monotonic() - self._seen_at
        if age_s <= self._offline_s and (remembered := known.remembered(name)) is not None:
            return remembered
        if age_s <= ABSENT_S and known.is_absent(name):
            return None
        return await known.ask(name)

    async def look(self) -> None:
        """See what has changed in the accounts, and ask for that again. Raises StateUnavailable."""
        begun, version = self._monotonic(), self._version
        self._version = None  # if this look fails, the next one asks for everything
        async with self._one_at_a_time:
            changes = await self._accounts.changes(version)
        if version is None or changes.version != version:
            is_known = version is not None and changes.version > version
            tenants = changes.tenants if is_known else None
            await self._keys.refresh(tenants)
            await self._projects.refresh(tenants)
        self._version, self._seen_at = changes.version, begun

    async def _follow(self) -> None:
        wait_s = FOLLOW_S
        while True:
            try:
                await self.look()
                wait_s = FOLLOW_S
            except Exception as error:  # every failure may be over at the next look
                wait_s = min(2 * wait_s, MAX_FOLLOW_S)
                if not isinstance(error, StateUnavailable):
                    logger.exception("the accounts cannot be followed")
            await asyncio.sleep(wait_s)

    async def _write_uses(self) -> None:
        while True:
            await asyncio.sleep(TOUCH_S)
            await self.write_uses()

    async def write_uses(self) -> None:
        """Write when keys were last used. If that fails, these times are lost."""
        used, self._used = self._used, {}
        if used:
            try:
                await self._accounts.touch(used)
            except Exception as error:
                logger.warning("when %d API keys were last used is not written: %s", len(used), error)


def _check(standing: AccountStanding, principal: Principal) -> None:
    """Raises Forbidden, and ServingError if the settings of the tenant cannot be read."""
    match standing:
        case AccountStanding.SUSPENDED:
            why = f"the tenant {principal.tenant} is suspended: ask the operator of this service"
            raise Forbidden(why, None, "tenant_suspended")
        case AccountStanding.ARCHIVED:
            why = f"the project {principal.project} is archived: use an API key of another project"
            raise Forbidden(why, None, "project_archived")
        case AccountStanding.UNREADABLE:
            logger.error("the settings or limits of tenant %s cannot be read", principal.tenant)
            raise ServingError("the settings of this tenant cannot be read: ask the operator of this service")
