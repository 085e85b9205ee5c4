"""What authentication knows of accounts, and asks of whatever stores them. Pure."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from api.identity.principal import Principal


class AccountStanding(StrEnum):
    """Whether a project may be used now."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    """The tenant is suspended."""
    ARCHIVED = "archived"
    """The project is archived."""
    UNREADABLE = "unreadable"
    """What is stored of its settings or limits cannot be read."""


class KnownProject(msgspec.Struct, frozen=True, kw_only=True):
    standing: AccountStanding
    principal: Principal
    """Who asks for this project: its tenant and its limits. The rights depend on the credential."""

    @property
    def tenant(self) -> str:
        return self.principal.tenant


class KnownKey(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    standing: AccountStanding
    """Of the key's project."""
    is_revoked: bool
    expires_at: float | None
    """Unix time. None for a key that does not expire."""
    principal: Principal
    """Who asks with this key."""

    @property
    def tenant(self) -> str:
        return self.principal.tenant


class ProjectName(NamedTuple):
    """A project as a token names it."""

    tenant: str
    project: str | None
    """The id. None for the default project of the tenant."""


class AccountChanges(NamedTuple):
    """What has changed since a version of the accounts."""

    version: int
    """The newest one. It grows with every change, and is lower than before only if the database was put back."""
    tenants: frozenset[str] | None
    """The tenants with changes. None if they were not counted: all may have some."""


class AccountsPort(Protocol):
    """Each call raises StateUnavailable if the accounts cannot be reached. What a call finds is at least as new as all
    that calls before it have found.
    """

    async def look_up(self, digests: Sequence[bytes]) -> Mapping[bytes, KnownKey]:
        """The keys with these digests."""
        ...

    async def look_up_projects(self, names: Sequence[ProjectName]) -> Mapping[ProjectName, KnownProject]: ...

    async def changes(self, since: int | None) -> AccountChanges:
        """`since`: the version that was seen last. None at first."""
        ...

    async def touch(self, used: Mapping[str, float]) -> None:
        """Store when keys were last used: Unix times by the ids of keys."""
        ...
