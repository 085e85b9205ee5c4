"""What becomes of placed requests and of workers, as ingresses and workers tell the Scheduler."""

import msgspec

from cluster.messages.ids import IngressId, RequestId, WorkerId


class PrefillDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """On path P->D: the prompt has been computed; the decode worker is next."""

    request_id: RequestId


class FirstToken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The generating worker has given its first token: from here on the request decodes."""

    request_id: RequestId


class RequestClosed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A placed request has ended, whatever the outcome; releases what placement charged."""

    request_id: RequestId
    digest: bytes = b""
    """As in its `PlacementRequest`."""
    num_output_tokens: int | None = None
    """When it finished by itself; of all its sequences."""
    num_engines_lost: int = 0
    """Engines that were lost while they ran it."""
    ttft_s: float | None = None
    """Since its arrival at the ingress, when it had a token."""
    tpot_s: float | None = None
    """When it had two."""

    @property
    def is_harmless(self) -> bool:
        """It has run from beginning to end, and no engine was lost with it."""
        return self.num_output_tokens is not None and not self.num_engines_lost


class WorkerLost(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An ingress process cannot reach a worker."""

    worker: WorkerId


class WorkerLeft(msgspec.Struct, frozen=True, kw_only=True):
    """A worker says that it takes no more requests, or none until it reports again."""

    worker: WorkerId
    engine_silent_s: float | None = None
    """Seconds since its engine, which is dead or hangs, last answered. None: the engine is well."""


class EngineLostWith(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An engine died or hung while it had a request."""

    digest: bytes
    worker: WorkerId
    num_engines_lost: int
    """Engines that were lost one after another with requests of this digest, with this one."""
    age_s: float = 0.0
    """Seconds since then, where another Scheduler process is told."""


class PairSuspected(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A handoff between two workers was wrong: no more of them for a while."""

    prefill: WorkerId
    decode: WorkerId


SchedulerEvent = PrefillDone | FirstToken | RequestClosed | WorkerLost | PairSuspected | EngineLostWith
"""What a session tells the Scheduler."""


class OpenRequests(msgspec.Struct, frozen=True, array_like=True):
    """All requests of an ingress process that are open, or about to be placed. The first message on its connection."""

    ingress: IngressId
    connection: int
    """Number of the connection: the process counts those that it has made."""
    requests: list[RequestId]


class Events(msgspec.Struct, frozen=True, array_like=True):
    """Events of an ingress process, in order."""

    first: int
    """Number of the first one. The process numbers all its events from 1 on."""
    events: list[SchedulerEvent]
