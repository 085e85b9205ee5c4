"""What is stored of accounts, as operators see it: tenants, projects, API keys and the log of changes."""

from datetime import datetime
from typing import Any, Self

import msgspec

from api.state.postgres.database import Row


class TenantAccount(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    status: str
    """`active` or `suspended`."""
    settings: dict[str, Any]
    """As stored: TenantSettings of api/identity/settings.py."""
    created_at: datetime

    @classmethod
    def of_row(cls, row: Row) -> Self:
        return cls(**{name: row["tenant_id" if name == "id" else name] for name in cls.__struct_fields__})


class Project(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    name: str
    is_default: bool
    limits: dict[str, Any]
    """As stored: Limits of cluster/config/tenants/limits.py."""
    created_at: datetime
    archived_at: datetime | None

    @classmethod
    def of_row(cls, row: Row) -> Self:
        return cls(**{name: row["tenant_id" if name == "tenant" else name] for name in cls.__struct_fields__})


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    project: str
    handle: str
    name: str
    rights: list[str]
    models: list[str] | None
    """None for all."""
    limits: dict[str, Any]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    rotated_to: str | None
    """The id of the key that a rotation has made in place of this one."""
    last_used_at: datetime | None
    """At most about a minute too early. None for a key that was never used."""

    @classmethod
    def of_row(cls, row: Row) -> Self:
        columns = {"tenant": "tenant_id", "project": "project_id"}
        return cls(**{name: row[columns.get(name, name)] for name in cls.__struct_fields__})


class IssuedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key, with its text, which is stored nowhere."""

    key: ApiKey
    text: str


class AccountChange(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the log of changes."""

    sequence: int
    """Grows with time. Some numbers are left out."""
    tenant: str
    at: datetime
    actor: str
    """Who has made the change."""
    action: str
    object: str
    """The id of what was changed."""
    before: dict[str, Any] | None
    """What was changed, as it was. None for an object that is new."""
    after: dict[str, Any]

    @classmethod
    def of_row(cls, row: Row) -> Self:
        return cls(**{name: row["tenant_id" if name == "tenant" else name] for name in cls.__struct_fields__})
