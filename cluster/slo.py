"""What a request must meet to count as goodput, and whether it did. Pure.

A request is good when it has finished and its TTFT and its TPOT met its SLO (DistServe). TTFT counts from its arrival
at the ingress to its first token, whatever it waited for; an answer of one token has no TPOT to miss. Attainment is
good requests over all that were offered: one that is refused or fails counts as bad, one whose client left not at all.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.messages.ids import Outcome, SloClass
from cluster.messages.placement import Slo

Seconds = Annotated[float, Meta(gt=0, le=86400)]


class Objective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the requests of one class."""

    ttft_s: Seconds
    """Time to the first token of a prompt of no length."""
    ttft_per_prefill: Annotated[float, Meta(ge=0, le=1000)]
    """So many times what the prompt takes to compute alone on an idle worker is added: nobody expects a book to be read
    as fast as a line. 0 gives all prompts the same time.
    """
    tpot_s: Seconds
    """Mean time between two tokens."""
    outage_wait_s: Annotated[float, Meta(ge=0, le=86400)] = 60.0
    """How long a request may wait for a worker while none lives, in seconds; a stream that has begun, too. Shorter
    refuses what the restart of a worker would have served, longer keeps clients waiting for one that does not come.
    """

    def resolve(self, isolated_prefill_s: float, ttft_s: float | None = None, tpot_s: float | None = None) -> Slo:
        """The SLO of one request whose prompt takes so long alone. Its own wishes may only tighten it."""
        ttft = self.ttft_s + self.ttft_per_prefill * isolated_prefill_s
        return Slo(
            ttft_s=ttft if ttft_s is None else min(ttft, ttft_s),
            tpot_s=self.tpot_s if tpot_s is None else min(self.tpot_s, tpot_s),
        )


class SloConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model's objectives: by what users notice, not by what the hardware gives. An objective that is tighter than
    an idle worker can meet makes every request of its class bad, and refusals many.
    """

    interactive: Objective = Objective(ttft_s=0.5, ttft_per_prefill=2.0, tpot_s=0.03, outage_wait_s=10.0)
    """Somebody waits for each word: voice, completion while typing. Tokens come at 33 a second."""
    standard: Objective = Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05, outage_wait_s=60.0)
    """Somebody reads along. 20 tokens a second are faster than anybody reads."""
    batch: Objective = Objective(ttft_s=30.0, ttft_per_prefill=10.0, tpot_s=0.2, outage_wait_s=600.0)
    """Nobody waits for a single answer."""

    def of(self, slo_class: SloClass) -> Objective:
        objective: Objective = getattr(self, slo_class)
        return objective


class Result(StrEnum):
    """Of a request, as goodput counts it."""

    GOOD = "good"
    TTFT_MISSED = "ttft_missed"
    TPOT_MISSED = "tpot_missed"
    BOTH_MISSED = "both_missed"
    REJECTED = "rejected"
    FAILED = "failed"


def result(slo: Slo | None, outcome: Outcome, ttft_s: float | None, tpot_s: float | None) -> Result | None:
    """None: it does not count, because it was aborted or there was nothing to meet."""
    match outcome:
        case Outcome.ABORTED:
            return None
        case Outcome.REJECTED:
            return Result.REJECTED
        case Outcome.FAILED:
            return Result.FAILED
    if slo is None:
        return None
    in_time = ttft_s is None or ttft_s <= slo.ttft_s
    fast = tpot_s is None or tpot_s <= slo.tpot_s
    if in_time:
        return Result.GOOD if fast else Result.TPOT_MISSED
    return Result.TTFT_MISSED if fast else Result.BOTH_MISSED
