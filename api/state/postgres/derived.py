"""What is made of what was said, as summaries are, and must not outlive it."""

import hashlib


def lock_of_derived(tenant: str) -> int:
    """Held by who deletes what a tenant has said, and by who stores what was made of it: no summary is stored of
    something that is being deleted.
    """
    return lock_number("derived", tenant)


def lock_number(*names: str) -> int:
    """Of a lock in PostgreSQL that has these names."""
    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
