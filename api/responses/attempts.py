"""Requests that are sent again: they find the response of the first try, and nothing is generated twice.

A client says so by an `Idempotency-Key`, or, as the official ones do by themselves, by the number of its tries.
"""

from typing import NamedTuple

from starlette.datastructures import Headers

from api.state.chat_state import ChatState
from api.state.retries import Claim
from cluster.errors import Conflict, InvalidRequest

KEY_HEADER, RETRY_HEADER = "idempotency-key", "x-stainless-retry-count"
MAX_KEY = 255
"""Characters."""
ATTACHED_WITHIN_S = 30.0
"""Since the end of the first try. Who tries later has had its answer, and means another one."""


class Attempt(NamedTuple):
    fingerprint: str
    """Of the request."""
    key: str | None
    is_retry: bool


class Found(NamedTuple):
    response: str
    is_there: bool
    """An earlier try has made it."""


def attempt_of(headers: Headers, fingerprint: str) -> Attempt:
    """Raises InvalidRequest."""
    key = headers.get(KEY_HEADER)
    if key is not None and not 1 <= len(key) <= MAX_KEY:
        raise InvalidRequest(f"{KEY_HEADER} must have 1 to {MAX_KEY} characters", None, "invalid_value")
    return Attempt(fingerprint, key, headers.get(RETRY_HEADER, "0") not in ("0", ""))


async def found_for(state: ChatState, tenant: str, attempt: Attempt, new: str) -> Found:
    """The response that answers this attempt: one that is there, or else a new one, to be made under this id.

    Raises:
        Conflict: the key was used for another request.
        StateUnavailable: whether it is there cannot be told.
    """
    if attempt.key is not None:
        return await _found_by_key(state, tenant, attempt.key, Claim(attempt.fingerprint, new))
    if attempt.is_retry and (first := await state.retries.running(tenant, attempt.fingerprint)) is not None:
        standing = await state.stores.response_events.standing(tenant, first)
        if standing is not None and standing.over_for_s < ATTACHED_WITHIN_S:
            return Found(first, is_there=True)
    await state.retries.remember(tenant, attempt.fingerprint, new)
    return Found(new, is_there=False)


async def _found_by_key(state: ChatState, tenant: str, key: str, claim: Claim) -> Found:
    held = await state.retries.claim(tenant, key, claim)
    if held.response == claim.response:
        return Found(held.response, is_there=False)
    if await state.stores.response_events.standing(tenant, held.response) is None:  # it was refused, or deleted
        await state.retries.claim_anew(tenant, key, claim)
        return Found(claim.response, is_there=False)
    if held.fingerprint != claim.fingerprint:
        raise Conflict(f"this {KEY_HEADER} was used for another request", None, "idempotency_key_conflict")
    return Found(held.response, is_there=True)
