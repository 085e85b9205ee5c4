"""What is written into the ledger of usage: the rows of attempts, and openings of requests that run. Pure.

The fields have the names of the columns (api/state/postgres/migrations/0015_ledger.sql). Texts hold no NUL characters
and no halves of surrogate pairs, which PostgreSQL does not store (api/metering/usage.py).
"""

import msgspec


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has begun."""

    id: str
    """The id of the entry: a UUID that has the request's arrival in it (`entry_id`)."""
    tenant_id: str
    project_id: str = ""
    key_id: str = ""
    end_user: str = ""
    model: str
    request_id: str
    """The id of the session. A client may have chosen it, so it is no key."""
    http_request: str = ""
    """The `x-request-id` of the HTTP request: that of its turn for a title or summary."""
    slo_class: str
    prompt_tokens: int
    ingress: str
    """The process that runs the request."""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt took, and what it costs. The sums over the rows of a request are those of the request."""

    id: str
    attempt: int
    """From 1 on. 0 for a request that was never placed, and for one that was lost with its ingress."""
    is_last: bool
    tenant_id: str
    project_id: str
    key_id: str
    end_user: str
    model: str
    request_id: str
    http_request: str
    slo_class: str
    path: str
    """Empty for a request that was never placed."""
    outcome: str
    """How the request ended."""
    ending: str
    """How the attempt ended."""
    prompt_tokens: int
    """Tokens of the prompt that the client is charged for: those of the whole prompt in one row of the request at most,
    and 0 in its other rows.
    """
    cached_tokens: int
    """The part of `prompt_tokens` that came from caches."""
    generated_tokens: int
    """Tokens that the client was given."""
    reasoning_tokens: int
    """The part of `generated_tokens` before the answer."""
    worker: str
    worker_tokens: int
    """Tokens that reached the ingress from the worker that generates, whether the client was given them or not."""
    prefill_worker: str
    prefill_tokens: int
    """The same of the prefill worker of path P->D."""
    is_complete: bool
    """Whether the engines have counted nothing else for this attempt."""
    began_s: float
    """Seconds from the arrival to the begin of the attempt."""
    ttft_s: float | None
    """Seconds from the arrival to the first token of the request, in the row that has that token."""
    duration_s: float
    """Seconds from the arrival to the end of the attempt."""
    price_version: str
    """Empty for what has no price."""
    currency: str
    cost_micros: int
    """Millionths of the currency."""


def entry_id(arrived_ms: int, chance: bytes) -> str:
    """A UUID of version 7. `arrived_ms`: Unix time in milliseconds; `chance`: ten random bytes."""
    random = int.from_bytes(chance, "big")
    number = (
        (arrived_ms & ((1 << 48) - 1)) << 80
        | 7 << 76
        | (random >> 62 & 0xFFF) << 64
        | 0b10 << 62
        | random & (1 << 62) - 1
    )
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def arrival_ms(entry: str) -> int:
    """The time that an entry's id has in it, in milliseconds of Unix time."""
    return int(entry.replace("-", "")[:12], 16)
