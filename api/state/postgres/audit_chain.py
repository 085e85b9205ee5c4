"""The hash chain of a tenant's safety events. Pure.

Each event of a tenant has a sequence number, without gaps, and a hash: an HMAC-SHA256 over all columns and the hash of
the event before it. The key is random, one for each tenant, and stored sealed. So a person who can write to the
database but does not have the master key can compute no hash. The two ends of the chain stand in a row of their own,
under an HMAC, too: the head is the newest event, and the anchor is the last event that the retention has deleted.

What `ChainCheck` detects: a column that was changed; events that were inserted, moved, exchanged, or copied from
another tenant; and events that were deleted in the middle, at the beginning or at the end.

What it does not detect: a person who has kept an earlier row of the ends (from a backup, or by having watched) can put
it back and delete all newer events. A person who deletes the whole chain leaves a tenant without events. An operator
finds both by a head that was noted elsewhere. A person with the master key can write any chain.

Evidence is not a part of the hash, because a rotation of keys seals it anew. Its own HMAC is a part.
"""

import hmac
from collections.abc import Iterable
from typing import NamedTuple

_EVENT, _ENDS, _TEXT, _EVIDENCE = (f"baton safety {what} 1".encode() for what in ("event", "chain", "text", "evidence"))
"""What an HMAC is about, so that none can be used in place of another one."""


class Link(NamedTuple):
    """An event's place in its chain."""

    sequence: int
    """From 1 on. 0 is before the first event."""
    hash: bytes


GENESIS = Link(0, bytes(32))
"""Before the first event."""


class AuditRow(NamedTuple):
    """The columns of an event as they are stored, except the sealed evidence and its key version."""

    tenant: str
    sequence: int
    id: str
    request_id: str
    at: float
    direction: str
    action: str
    policy_version: str
    categories: tuple[str, ...]
    verdicts: str
    """A JSON array, kept as it was written."""
    text_mac: bytes | None
    evidence_mac: bytes | None
    """None if there is no evidence."""


class ChainedRow(NamedTuple):
    row: AuditRow
    hash: bytes


class ChainEnds(NamedTuple):
    """The row of a chain, beside its key."""

    tenant: str
    head: Link
    anchor: Link
    begins_at: float
    """Unix time of the last erasure of the tenant, 0 if there was none. Earlier events are not stored."""


class BrokenRow(NamedTuple):
    """Where a chain is broken first."""

    sequence: int
    why: str


Encodable = str | bytes | float | int | None | tuple["Encodable", ...]


def row_hash(key: bytes, previous: bytes, row: AuditRow) -> bytes:
    return _mac(key, _EVENT, (previous, row))


def ends_mac(key: bytes, ends: ChainEnds) -> bytes:
    return _mac(key, _ENDS, ends)


def text_mac(key: bytes, sha256: bytes) -> bytes:
    """The keyed hash of a text. Without the key, nobody can check a guess of the text by it."""
    return _mac(key, _TEXT, sha256)


def evidence_mac(key: bytes, evidence: bytes) -> bytes:
    return _mac(key, _EVIDENCE, evidence)


class ChainCheck:
    """A walk along a chain, from its anchor on."""

    def __init__(self, key: bytes, ends: ChainEnds) -> None:
        self._key = key
        self._ends = ends
        self.link = ends.anchor
        """The last sound event."""

    def take(self, found: ChainedRow) -> BrokenRow | None:
        """Check the next event."""
        row, due = found.row, self.link.sequence + 1
        if row.sequence != due:
            return BrokenRow(due, f"event {row.sequence} is in its place")
        if row.tenant != self._ends.tenant:
            return BrokenRow(due, "it is another tenant's")
        if not hmac.compare_digest(found.hash, row_hash(self._key, self.link.hash, row)):
            return BrokenRow(due, "it was changed, or does not follow the one before it")
        if due == self._ends.head.sequence and found.hash != self._ends.head.hash:
            return BrokenRow(due, "it is not the head of the chain")
        self.link = Link(due, found.hash)
        return None

    def finish(self, newest: Link) -> BrokenRow | None:
        """Check where the walk has ended. `newest`: the head after the walk, during which the chain may have grown."""
        if self.link.sequence < self._ends.head.sequence:
            return BrokenRow(self.link.sequence + 1, "it is missing, and all events after it")
        if self.link.sequence > newest.sequence:
            return BrokenRow(newest.sequence + 1, "it is after the head of the chain")
        return None


def check(key: bytes, ends: ChainEnds, rows: Iterable[ChainedRow]) -> BrokenRow | None:
    """The first event where a whole chain is broken. None if it is sound."""
    walk = ChainCheck(key, ends)
    for row in rows:
        if broken := walk.take(row):
            return broken
    return walk.finish(ends.head)


def _mac(key: bytes, about: bytes, value: Encodable) -> bytes:
    return hmac.digest(key, about + _encoded(value), "sha256")


def _encoded(value: Encodable) -> bytes:
    """A kind, a length and the bytes: no two values have the same encoding."""
    match value:
        case None:
            kind, body = b"-", b""
        case str():
            kind, body = b"s", value.encode("utf-8", "surrogatepass")
        case bytes():
            kind, body = b"b", value
        case int():
            kind, body = b"i", str(value).encode()
        case float():
            kind, body = b"f", value.hex().encode()
        case _:
            kind, body = b"t", b"".join(map(_encoded, value))
    return kind + str(len(body)).encode() + b":" + body
