"""Requests that are sent again: they find the response of the first try, and nothing is generated twice.

A client says so by an `Idempotency-Key`, or, as the official ones do by themselves, by the number of its tries.
"""

import asyncio
import math
import time
from typing import NamedTuple

from starlette.datastructures import Headers

from api.state.event_streams.response_events import Standing
from api.state.lifecycle import ChatState
from api.state.redis.idempotency_keys import GenerationClaim, HeldClaim, Hold
from cluster.errors import Conflict, InvalidRequest, StillAdmitting

KEY_HEADER, RETRY_HEADER = "idempotency-key", "x-stainless-retry-count"
MAX_KEY = 255
"""Characters."""
ATTACHED_WITHIN_S = 30.0
"""Since the end of the first try. Who tries later has had its answer, and means another one."""
WAIT_S = 5.0
"""For an earlier try that is being admitted. Longer keeps a connection for it; shorter makes clients ask again."""
LOOK_INTERVAL_S = 0.05
RETRY_AFTER_S = 2.0


class Attempt(NamedTuple):
    fingerprint: str
    """Of the request."""
    key: str | None
    is_retry: bool


class KeyedResponse(NamedTuple):
    response: str
    hold: Hold | None
    """Of who is to make it. None: an earlier try has made it."""


def attempt_of(headers: Headers, fingerprint: str) -> Attempt:
    """Raises InvalidRequest."""
    key = headers.get(KEY_HEADER)
    if key is not None and not 1 <= len(key) <= MAX_KEY:
        raise InvalidRequest(f"{KEY_HEADER} must have 1 to {MAX_KEY} characters", None, "invalid_value")
    return Attempt(fingerprint, key, headers.get(RETRY_HEADER, "0") not in ("0", ""))


async def found_for(state: ChatState, tenant: str, attempt: Attempt, new: str) -> KeyedResponse:
    """The response that answers this attempt: one that is there, or else a new one, to be made under this id.

    Raises:
        Conflict: the key was used for another request; or another try is still being admitted.
        StateUnavailable: whether it is there cannot be told.
    """
    claim = GenerationClaim(state.retries.hashed(attempt.fingerprint), new)
    if attempt.key is not None:
        return await _found_by_name(state, tenant, f"key {attempt.key}", claim, math.inf)
    name = f"request {attempt.fingerprint}"
    if attempt.is_retry:
        return await _found_by_name(state, tenant, name, claim, ATTACHED_WITHIN_S)
    return KeyedResponse(new, await state.retries.take(tenant, name, claim))


async def _found_by_name(
    state: ChatState, tenant: str, name: str, claim: GenerationClaim, attached_within_s: float
) -> KeyedResponse:
    """`attached_within_s`: since the end of the earlier try."""
    until, gone = time.monotonic() + WAIT_S, None
    while True:
        held = await state.retries.claim(tenant, name, claim, gone)
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
        if held.is_admitted:  # and then refused, or deleted; or else long over
            gone = held.claim
        elif time.monotonic() > until:
            raise StillAdmitting("the request was sent before, and is not admitted yet", RETRY_AFTER_S)
        else:
            await asyncio.sleep(LOOK_INTERVAL_S)


async def _standing(state: ChatState, tenant: str, held: HeldClaim) -> Standing | None:
    return await state.stores.response_events.standing(tenant, held.claim.response)
