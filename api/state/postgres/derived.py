"""Locks around what is derived from stored texts, such as summaries, and must not outlive them."""

import hashlib


def lock_of_derived(tenant: str) -> int:
    """The lock that a transaction holds while it deletes texts of a tenant, or stores what was derived from them: no
    summary is stored of a text that is being deleted.
    """
    return lock_number("derived", tenant)


def lock_number(*names: str) -> int:
    """The number of the advisory lock with these names."""
    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
