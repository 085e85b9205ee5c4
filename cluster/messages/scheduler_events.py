"""What happens to placed requests and to workers, as ingresses and workers tell the Scheduler."""

from enum import StrEnum

import msgspec

from cluster.messages.ids import IngressId, RequestId, WorkerId


class PrefillDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The prompt of a request on path P->D has been computed. The decode worker is next."""

    request_id: RequestId


class FirstToken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The generating worker has given its first token. The request decodes from now on."""

    request_id: RequestId


class RequestClosed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A placed request has ended, with any outcome. What placement charged is released."""

    request_id: RequestId
    digest: bytes = b""
    """The digest of the request's `PlacementRequest`."""
    num_output_tokens: int | None = None
    """Output tokens of all sequences, if the request finished by itself. None otherwise."""
    num_engines_lost: int = 0
    """Engines that were lost while they ran the request."""
    ttft_s: float | None = None
    """Seconds from the arrival at the ingress to the first token. None if there was no token."""
    tpot_s: float | None = None
    """Mean seconds between tokens. None if there were fewer than two tokens."""

    @property
    def is_harmless(self) -> bool:
        """Whether the request has run from beginning to end, and no engine was lost with it."""
        return self.num_output_tokens is not None and not self.num_engines_lost


class WorkerLost(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An ingress process cannot reach a worker. Other processes perhaps can."""

    worker: WorkerId


class WorkerLeft(msgspec.Struct, frozen=True, kw_only=True):
    """A worker takes no more requests, or none until its next report."""

    worker: WorkerId
    engine_silent_s: float | None = None
    """Seconds since the last answer of the worker's engine, which is dead or hangs. None if the engine is healthy."""


class EngineLostWith(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An engine died or hung while it had a request."""

    digest: bytes
    worker: WorkerId
    num_engines_lost: int
    """Engines that were lost one after another with requests of this digest, this engine included."""
    age_s: float = 0.0
    """Seconds since the loss, if the event is sent to a new Scheduler process."""


class HandoffVerdict(StrEnum):
    """What the check of one handoff has found (kvtransfer/verify.py)."""

    AGREES = "agrees"
    """Both engines are within the tolerance."""
    CLEARED = "cleared"
    """They are not, but a computation without the handoff shows that rounding explains it."""
    COPY_WRONG = "copy_wrong"
    """The decode engine has read other KV than the prefill engine has."""
    PREFILL_WRONG = "prefill_wrong"
    """The prefill engine itself computes something else than both others."""
    UNCLEAR = "unclear"
    """All three disagree."""

    @property
    def is_strike(self) -> bool:
        return self is not HandoffVerdict.AGREES and self is not HandoffVerdict.CLEARED


class HandoffChecked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A handoff between two workers was verified."""

    prefill: WorkerId
    decode: WorkerId
    verdict: HandoffVerdict
    distance: float
    """How far the two engines are apart, in nats (kvtransfer/verify.py). May be infinite."""
    num_strikes: int = 0
    """Wrong handoffs of the pair that were known one after another, this one included if it is wrong."""
    age_s: float = 0.0
    """Seconds since the check, if the event is sent to a new Scheduler process."""


SchedulerEvent = PrefillDone | FirstToken | RequestClosed | WorkerLost | HandoffChecked | EngineLostWith
"""What a session tells the Scheduler."""


class Pause(msgspec.Struct, frozen=True, array_like=True):
    """The Scheduler asks the ingress of a request to pause it: to end its placement, and to ask for another one."""

    request_id: RequestId
    attempt: int
    """Number of the placement that is meant (`PlacementRequest.attempt`). Any other placement goes on."""


class OpenRequests(msgspec.Struct, frozen=True, array_like=True):
    """All requests of an ingress process that are open, or about to be placed. The first message on its connection,
    sent again at intervals.
    """

    ingress: IngressId
    connection: int
    """Number of the connection, counted by the ingress process."""
    requests: list[RequestId]


class Events(msgspec.Struct, frozen=True, array_like=True):
    """Events of an ingress process, in order."""

    first: int
    """Number of the first event. The process numbers all its events, beginning with 1."""
    events: list[SchedulerEvent]
