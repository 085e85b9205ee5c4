"""Idempotency: a request that is sent again finds the response of its first try, and nothing is generated twice.

A client marks a retry with an `Idempotency-Key`, or with the number of its retries, which OpenAI's clients send by
themselves. Only responses that are stored are found again. How long a key is kept is in
api/state/redis/idempotency_keys.py.
"""

import asyncio
import math
import time
from typing import NamedTuple

from starlette.datastructures import Headers

from api.state.event_streams.response_events import Standing
from api.state.lifecycle import ChatState
from api.state.redis.idempotency_keys import HeldClaim, Hold, KeyClaim
from cluster.errors import Conflict, InvalidRequest, StillAdmitting

KEY_HEADER, RETRY_HEADER = "idempotency-key", "x-stainless-retry-count"
MAX_KEY = 255
"""Characters of an Idempotency-Key. More takes memory of Redis; fewer refuses the keys of more clients."""
ATTACHED_WITHIN_S = 30.0
"""How long after the end of a response a retry without a key finds the response, in seconds. Shorter answers slow
retries twice; longer gives an equal request that was meant anew the old answer.
"""
WAIT_S = 5.0
"""How long a retry waits while its first try is being admitted, in seconds. Longer keeps a connection for it; shorter
makes clients ask again.
"""
LOOK_INTERVAL_S = 0.05
"""The time between two looks while a retry waits, in seconds. Shorter costs more calls to Redis; longer answers later.
"""
RETRY_AFTER_S = 2.0
"""The Retry-After of a retry that has waited in vain, in seconds. Shorter brings more requests; longer answers later.
"""


class Attempt(NamedTuple):
    """A try of a request."""

    sender: str
    """Who has sent it. The try of another sender is another request: it may not be allowed to read the response."""
    fingerprint: str
    """The hash of the whole request."""
    key: str | None
    """The Idempotency-Key; None if the client has sent none."""
    is_retry: bool


class KeyedResponse(NamedTuple):
    """The response that answers a try."""

    response: str
    hold: Hold | None
    """The claim on the key, under which the response is to be made. None if an earlier try has made the response."""


def attempt_of(headers: Headers, sender: str, fingerprint: str) -> Attempt:
    """Raises InvalidRequest."""
    key = headers.get(KEY_HEADER)
    if key is not None and not 1 <= len(key) <= MAX_KEY:
        raise InvalidRequest(f"{KEY_HEADER} must have 1 to {MAX_KEY} characters", None, "invalid_value")
    return Attempt(sender, fingerprint, key, headers.get(RETRY_HEADER, "0") not in ("0", ""))


async def found_for(state: ChatState, tenant: str, attempt: Attempt, new: str) -> KeyedResponse:
    """The response of an earlier try, or else a new response with the id `new`, which is to be made.

    Raises:
        Conflict: the key was used for another request; or another try is still being admitted.
        StateUnavailable: PostgreSQL, which knows whether the response of an earlier try exists, is away.
    """
    claim = KeyClaim(state.idempotency_keys.hashed(attempt.fingerprint), new)
    if attempt.key is not None:
        return await _found_by_name(state, tenant, f"{attempt.sender} key {attempt.key}", claim, math.inf)
    name = f"{attempt.sender} request {attempt.fingerprint}"
    if attempt.is_retry:
        return await _found_by_name(state, tenant, name, claim, ATTACHED_WITHIN_S)
    return KeyedResponse(new, await state.idempotency_keys.take(tenant, name, claim))


async def _found_by_name(
    state: ChatState, tenant: str, name: str, claim: KeyClaim, attached_within_s: float
) -> KeyedResponse:
    """`attached_within_s`: how long after its end the response of an earlier try is found."""
    until, gone = time.monotonic() + WAIT_S, None
    while True:
        held = await state.idempotency_keys.claim(tenant, name, claim, gone)
        if isinstance(held, Hold):
            return KeyedResponse(claim.response, held)
        if held.claim.fingerprint != claim.fingerprint:
            if not held.is_admitted or await _standing(state, tenant, held) is not None:
                raise Conflict(f"this {KEY_HEADER} was used for another request", None, "idempotency_key_conflict")
            gone = held.claim
            continue
        standing = await _standing(state, tenant, held)
        if standing is not None and standing.over_for_s < attached_within_s:
            return KeyedResponse(held.claim.response, None)
        if held.is_admitted:  # but the response was refused or deleted later, or it has been over for too long
            gone = held.claim
        elif time.monotonic() > until:
            raise StillAdmitting("an earlier try of this request is still being admitted", RETRY_AFTER_S)
        else:
            await asyncio.sleep(LOOK_INTERVAL_S)


async def _standing(state: ChatState, tenant: str, held: HeldClaim) -> Standing | None:
    return await state.stores.response_events.standing(tenant, held.claim.response)
