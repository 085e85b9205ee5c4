"""The safety events of one tenant in one transaction: how they are appended to the chain of the tenant, and read.

Replicas extend one chain: whoever appends holds the lock of the chain's row. Nobody extends a chain whose row was
changed by hand, because a new HMAC would hide that.
"""

import hmac
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from api.state.encryption.tenant_keys import KEY_BYTES, TenantKey
from api.state.postgres.audit_chain import (
    GENESIS,
    AuditRow,
    ChainEnds,
    Link,
    ends_mac,
    evidence_mac,
    row_hash,
    text_mac,
)
from api.state.postgres.database import Row
from api.state.postgres.queries import queries
from api.state.postgres.tenant_transaction import TenantTransaction
from cluster.errors import ServingError, StateUnavailable

_SQL = queries("audit.sql")


class Auditable(Protocol):
    """An event that is to be stored: SafetyEvent of api/safety/audit/event.py."""

    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def request_id(self) -> str: ...
    @property
    def at(self) -> float: ...
    @property
    def direction(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def policy_version(self) -> str: ...
    @property
    def categories(self) -> Sequence[str]: ...
    @property
    def verdicts(self) -> Sequence[Any]: ...
    @property
    def text_sha256(self) -> bytes | None: ...
    @property
    def evidence(self) -> bytes | None: ...


class StoredAudit(NamedTuple):
    """An event as it is stored."""

    row: AuditRow
    hash: bytes
    sealed: bytes | None
    """The sealed evidence. None if there is none, and in lists."""
    key: TenantKey | None
    """Opens the evidence. None if there is no such key."""

    def evidence(self) -> bytes | None:
        """Raises ServingError if it cannot be opened."""
        if self.sealed is None:
            return None
        if self.key is None:
            raise ServingError(f"the key of the evidence of {self.row.id} is destroyed")
        return self.key.unseal(self.sealed, _place(self.row.id))


class Chain(NamedTuple):
    """The row of a tenant's chain, opened."""

    key: bytes
    ends: ChainEnds


async def append_in(
    transaction: TenantTransaction, events: Sequence[Auditable], *, keeps_evidence: bool = True
) -> set[str]:
    """Append events of the transaction's tenant to its chain. Returns the ids of those that are stored now. Raises
    ServingError if the chain was changed by hand.
    """
    sealing = await transaction.sealing_key()
    chain = await locked_chain(transaction, sealing)
    known = {row["id"] for row in await transaction.fetch_all(_SQL["known"], ids=[event.id for event in events])}
    link, added = chain.ends.head, list[Row]()
    for event in events:
        if event.id not in known and event.at >= chain.ends.begins_at:
            known.add(event.id)
            evidence = event.evidence if keeps_evidence else None
            row = _row(chain.key, link.sequence + 1, event, evidence)
            link = Link(row.sequence, row_hash(chain.key, link.hash, row))
            added.append(_columns(row, link.hash, evidence, sealing))
    if added:
        async with transaction.connection.cursor() as cursor:
            await cursor.executemany(_SQL["add"], added)
        await move_ends(transaction, chain.key, chain.ends._replace(head=link))
    return known


async def locked_chain(transaction: TenantTransaction, sealing: TenantKey) -> Chain:
    """The chain of the tenant, which no other transaction extends meanwhile. A new tenant gets one."""
    row = await transaction.fetch_one(_SQL["lock_chain"])
    if row is None:
        begun = await transaction.fetch_one(_SQL["begins_at"])
        assert begun is not None
        key = os.urandom(KEY_BYTES)
        columns = {
            "chain_key": sealing.seal(key, _place_of_chain(transaction.tenant)),
            "key_version": sealing.version,
            "begins_at": begun["begins_at"],
        }
        ends = ChainEnds(transaction.tenant, GENESIS, GENESIS, begun["begins_at"])
        await transaction.execute(_SQL["add_chain"], **columns, **_ends_columns(key, ends))
        row = await transaction.fetch_one(_SQL["lock_chain"])
        assert row is not None
    return await opened(transaction, row)


async def opened(transaction: TenantTransaction, row: Row) -> Chain:
    """The row of a chain, opened. Raises ServingError if it was changed by hand, or cannot be read."""
    tenant = transaction.tenant
    try:
        sealing = await transaction.key(row["key_version"])
        key = sealing.unseal(row["chain_key"], _place_of_chain(tenant))
    except StateUnavailable:
        raise
    except ServingError as error:
        raise ServingError(f"the key of the chain of safety events of tenant '{tenant}' cannot be read") from error
    head, anchor = [Link(row[f"{end}_sequence"], row[f"{end}_hash"]) for end in ("head", "anchor")]
    ends = ChainEnds(tenant, head, anchor, row["begins_at"])
    if not hmac.compare_digest(ends_mac(key, ends), row["mac"]):
        raise ServingError(f"the row of the chain of safety events of tenant '{tenant}' was changed")
    return Chain(key, ends)


async def move_ends(transaction: TenantTransaction, key: bytes, ends: ChainEnds) -> None:
    await transaction.execute(_SQL["move_ends"], **_ends_columns(key, ends))


def _ends_columns(key: bytes, ends: ChainEnds) -> dict[str, Any]:
    return {
        "head_sequence": ends.head.sequence,
        "head_hash": ends.head.hash,
        "anchor_sequence": ends.anchor.sequence,
        "anchor_hash": ends.anchor.hash,
        "mac": ends_mac(key, ends),
    }


def _row(key: bytes, sequence: int, event: Auditable, evidence: bytes | None) -> AuditRow:
    return AuditRow(
        tenant=event.tenant,
        sequence=sequence,
        id=event.id,
        request_id=event.request_id,
        at=float(event.at),
        direction=str(event.direction),
        action=str(event.action),
        policy_version=event.policy_version,
        categories=tuple(map(str, event.categories)),
        verdicts=msgspec.json.encode(event.verdicts).decode(),
        text_mac=None if event.text_sha256 is None else text_mac(key, event.text_sha256),
        evidence_mac=None if evidence is None else evidence_mac(key, evidence),
    )


def _columns(row: AuditRow, hash_: bytes, evidence: bytes | None, sealing: TenantKey) -> Row:
    return row._asdict() | {
        "categories": list(row.categories),
        "evidence": None if evidence is None else sealing.seal(evidence, _place(row.id)),
        "key_version": None if evidence is None else sealing.version,
        "hash": hash_,
    }


def stored_audit(row: Row, keys: dict[int, TenantKey]) -> StoredAudit:
    columns = {name: row[name] for name in AuditRow._fields if name not in ("tenant", "categories")}
    found = AuditRow(tenant=row["tenant_id"], categories=tuple(row["categories"]), **columns)
    return StoredAudit(found, row["hash"], row["evidence"], keys.get(row["key_version"]))


async def keys_of_evidence(transaction: TenantTransaction, rows: list[Row]) -> dict[int, TenantKey]:
    """The keys that open the evidence of these rows, by version, without those that are destroyed."""
    keys: dict[int, TenantKey] = {}
    for version in {row["key_version"] for row in rows} - {None}:
        try:
            keys[version] = await transaction.key(version)
        except StateUnavailable:
            raise
        except ServingError:
            continue  # the evidence cannot be opened any more
    return keys


def _place(event: str) -> str:
    return f"safety_events/{event}/evidence"


def _place_of_chain(tenant: str) -> str:
    return f"safety_chains/{tenant}/chain_key"
