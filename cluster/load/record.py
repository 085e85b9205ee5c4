"""What became of each request of a load, as its client saw it. Pure.

TTFT and E2E count from the moment at which the request was due. A request that the generator sent late has waited for
all that time, as its user has: figures that count from the sending leave out what a slow service delays (coordinated
omission). In a closed loop a request is due as soon as it is its turn.
"""

from array import array
from enum import StrEnum

import msgspec

from cluster.messages.ids import SloClass
from cluster.messages.placement import Slo


class LoadEnding(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    REFUSED = "refused"
    """Status 429 or 503: the service says that it has no room."""
    HTTP_ERROR = "http_error"
    """Any other status than 200."""
    ERROR_EVENT = "error_event"
    """The stream has told of an error."""
    CUT = "cut"
    """The stream began, and the connection ended before the answer did."""
    BROKEN = "broken"
    """What came is no HTTP, no event stream or no JSON of the API."""
    TOO_LARGE = "too_large"
    """The answer, or a line of it, was larger than any answer can be."""
    TIMED_OUT = "timed_out"
    UNREACHABLE = "unreachable"
    """No connection, or the connection ended before anything came."""
    STOPPED = "stopped"
    """The user has ended the load. Such a request does not count."""


class LoadRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request. Times are seconds."""

    number: int
    """Place in the order of the workload, from 0."""
    session: str = ""
    slo_class: SloClass = SloClass.STANDARD
    due_s: float
    """When the request was due, from the start of the load."""
    late_s: float = 0.0
    """How much later it was sent."""
    ending: LoadEnding
    status: int = 0
    """HTTP status of the last try. 0 without an answer."""
    error: str = ""
    """What was wrong, cut to MAX_ERROR characters."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    """(E2E - TTFT) / (tokens - 1), with the tokens that `usage` counts. None with fewer than two tokens, or without
    `usage`.
    """
    e2e_s: float | None = None
    """Until the last token. None without a token."""
    ended_s: float
    """When the request ended, from the start of the load."""
    gaps: bytes = b""
    """ITL: seconds between each two arrivals of tokens, as an array of type `f`. Tokens that came together are one
    arrival.
    """
    planned_prompt: int
    """Tokens that the workload asked for."""
    num_prompt: int | None = None
    """Tokens of the prompt that `usage` counts."""
    num_cached: int | None = None
    """Tokens of the prompt that were found in a cache. None if the service does not tell."""
    planned_output: int
    num_output: int | None = None
    """Tokens of the answer that `usage` counts."""
    retry_after_s: float | None = None
    """Retry-After of the last refusal."""
    num_tries: int = 1

    @property
    def gaps_s(self) -> "array[float]":
        return array("f", self.gaps)

    def line(self, load: int, slo: Slo) -> bytes:
        """The record as a line of JSON, with its ITL summed up. `load`: which load of a ramp it belongs to."""
        gaps = sorted(self.gaps_s)
        summed = {
            name: gaps[int(share * (len(gaps) - 1))] if gaps else None
            for name, share in (("itl_p50_s", 0.5), ("itl_p99_s", 0.99), ("itl_max_s", 1.0))
        }
        fields = {name: value for name, value in msgspec.structs.asdict(self).items() if name != "gaps"}
        return msgspec.json.encode({"load": load, **fields, **summed, "is_good": self.is_good(slo)}) + b"\n"

    def is_good(self, slo: Slo) -> bool:
        """Whether the request finished within both objectives. An answer of one token has no TPOT to miss. An answer
        whose tokens nobody has counted is not good.
        """
        if self.ending is not LoadEnding.FINISHED or self.ttft_s is None or self.num_output is None:
            return False
        return self.ttft_s <= slo.ttft_s and (self.tpot_s is None or self.tpot_s <= slo.tpot_s)


class GeneratorFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The generator's own work during a load."""

    cpu_share: float
    """CPU time of the process over wall time. The generator has one thread: 1 is all that it can do."""
    loop_lag_p99_s: float
    loop_lag_max_s: float
    """How much later than asked for the event loop ran, over the time of the load. Times of tokens are wrong by as
    much.
    """
    loop_late_share: float
    """Share of the time of the load in which the event loop was late by more than LATE_S."""
    most_open: int
    """Most requests that were open at a time."""


LATE_S = 0.01
"""Lateness of the generator that a report warns of, in seconds. Higher keeps silent where TTFT is off by that much;
lower warns where it makes no difference.
"""
MAX_OPEN = 4096
"""Most requests of an open loop that are open at a time. A request that is due beyond this number waits, and counts
from its due time. More need more open files; fewer turn an open loop into a closed one.
"""
MAX_ERROR = 200
"""Characters of an error that are kept. More let an endpoint fill memory and reports; fewer cut the reason off."""
