"""What a client is told of its limits: the headers of its answers, and the error of a request that is refused. Pure."""

from collections.abc import Sequence

from api.limits.budget import BUSY_MS, Denied
from api.limits.counters import Room
from api.limits.limits import FIELDS, Amounts, Bucket, LimitKind, Measure
from api.wire.response_headers import (
    LIMIT_REQUESTS,
    LIMIT_TOKENS,
    REMAINING_REQUESTS,
    REMAINING_TOKENS,
    RESET_REQUESTS,
    RESET_TOKENS,
)
from cluster.errors import InvalidRequest, QuotaExceeded, RateLimited, ServingError

_NAMES = {
    LimitKind.REQUESTS: (LIMIT_REQUESTS, REMAINING_REQUESTS, RESET_REQUESTS),
    LimitKind.TOKENS: (LIMIT_TOKENS, REMAINING_TOKENS, RESET_TOKENS),
}


def rate_limit_headers(buckets: Sequence[Bucket], rooms: Sequence[Room]) -> dict[str, str]:
    """OpenAI's headers. Of several scopes, the one that has the least left counts."""
    headers: dict[str, str] = {}
    for kind, (limit, remaining, reset) in _NAMES.items():
        found = [(bucket, room) for bucket, room in zip(buckets, rooms, strict=True) if bucket.kind is kind]
        if found:
            bucket, room = min(found, key=lambda pair: pair[1].remaining)
            headers |= {
                limit: str(bucket.capacity),
                remaining: str(room.remaining),
                reset: duration_text(room.reset_ms),
            }
    return headers


def duration_text(milliseconds: int) -> str:
    """A duration as Go writes it: "250ms", "1.5s", "6m0s", "1h0m0s"."""
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}" if hours else f"{minutes}m{seconds}" if minutes else seconds


def refusal(buckets: Sequence[Bucket], denied: Denied, asked: Amounts) -> ServingError:
    """The error of a request that a bucket has no room for."""
    bucket, room = buckets[denied.binding], denied.rooms[denied.binding]
    amount = asked.of(bucket.kind)
    name = FIELDS[bucket.kind].replace("_", " ")
    is_reserved = 0 < denied.wait_ms <= BUSY_MS
    if bucket.kind.is_budget and not is_reserved:
        return QuotaExceeded(
            f"the budget of {bucket.scope} is spent: {name}: limit {bucket.capacity}, left {room.remaining}, this "
            f"request may take {amount}. {_when(bucket, amount, room)}"
        )
    if amount > bucket.capacity:
        return InvalidRequest(
            f"this request can never be admitted: it may take {amount} tokens, its prompt and what is reserved for its "
            f"answers, and {bucket.scope} may use {bucket.capacity} {name}. Lower max_tokens or n, shorten the "
            "prompt, or ask the operator for a higher limit; it is no use to send the request again",
            "max_tokens",
            "request_exceeds_limit",
        )
    wait = duration_text(denied.wait_ms)
    what = (
        f"requests that run have reserved the budget of {bucket.scope}"
        if bucket.kind.is_budget
        else (f"rate limit of {bucket.scope} reached")
    )
    return RateLimited(
        f"{what}: {name}: limit {bucket.capacity}, left {room.remaining}, this request "
        f"may take {amount}. Try again in {wait}",
        "tokens" if bucket.kind.measure is Measure.TOKENS else "requests",
        denied.wait_ms / 1000,
        rate_limit_headers(buckets, denied.rooms),
    )


def _when(bucket: Bucket, amount: int, room: Room) -> str:
    if amount > bucket.capacity:
        return "The request is larger than the whole budget: lower max_tokens, or ask the operator for a higher one"
    return (
        f"It begins anew in {duration_text(room.reset_ms)}; until then, lower max_tokens or ask the operator for more"
    )
