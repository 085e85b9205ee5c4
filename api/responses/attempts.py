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
    response: str | None = None
    if attempt.key is not None:
        held = await state.retries.claim(tenant, attempt.key, Claim(attempt.fingerprint, new))
        if held.fingerprint != attempt.fingerprint:
            raise Conflict(f"this {KEY_HEADER} was used for another request", None, "idempotency_key_conflict")
        response = held.response
    elif attempt.is_retry:
        response = await state.retries.running(tenant, attempt.fingerprint)
    if response is None or response == new:
        await state.retries.remember(tenant, attempt.fingerprint, new)
        return Found(new, is_there=False)
    return Found(response, is_there=await state.stores.response_events.standing(tenant, response) is not None)
