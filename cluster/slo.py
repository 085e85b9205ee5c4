"""What a request must meet to count as goodput, and whether it did. Pure.

A request is good when it has finished and its TTFT and its TPOT met its SLO (DistServe). TTFT counts from the arrival
of the request at the ingress to its first token, all waiting included. An answer of one token has no TPOT. Attainment
is the number of good requests divided by the number of offered requests. A request that is refused or fails counts as
bad. A request that its client aborted does not count, unless it had waited for its first token for longer than its TTFT
objective: then its client has left because of the wait.

`SloConfig` is the section `slo:` of the config. `SloClass` (cluster/messages/ids.py) names the classes, and
`api/wire/slo.py` maps OpenAI's service tiers to them.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.messages.ids import Outcome, SloClass
from cluster.messages.placement import Slo

Seconds = Annotated[float, Meta(gt=0, le=86400)]


class Objective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The objectives of the requests of one class."""

    ttft_s: Seconds
    """TTFT objective of an empty prompt, in seconds. A longer objective admits more requests when workers are busy; a
    shorter one refuses more.
    """
    ttft_per_prefill: Annotated[float, Meta(ge=0, le=1000)]
    """Time that is added to the TTFT objective, as a multiple of the prompt's prefill time on an idle worker: users
    expect a long prompt to take longer. A higher value gives long prompts more time; 0 gives all prompts the same time.
    """
    tpot_s: Seconds
    """TPOT objective, in seconds. A longer objective admits more requests to a worker at once; a shorter one refuses
    more.
    """
    outage_wait_s: Annotated[float, Meta(ge=0, le=86400)] = 60.0
    """Time that a request, or a stream that has begun, may wait while no worker lives, or after its worker failed or it
    was paused while none has room for it, in seconds. Then the request is refused. Shorter refuses requests that a
    restarted worker would serve; longer keeps clients waiting for a worker that does not come.
    """

    def resolve(self, isolated_prefill_s: float, ttft_s: float | None = None, tpot_s: float | None = None) -> Slo:
        """The SLO of one request. `isolated_prefill_s` is the prefill time of its prompt on an idle worker. The
        request's own objectives `ttft_s` and `tpot_s` can only tighten the SLO.
        """
        ttft = self.ttft_s + self.ttft_per_prefill * isolated_prefill_s
        return Slo(
            ttft_s=ttft if ttft_s is None else min(ttft, ttft_s),
            tpot_s=self.tpot_s if tpot_s is None else min(self.tpot_s, tpot_s),
        )


class SloConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The objectives of one model, by what its users notice and not by what the hardware gives. An objective that an
    idle worker cannot meet makes every request of its class bad, and causes many refusals.
    """

    interactive: Objective = Objective(ttft_s=0.5, ttft_per_prefill=2.0, tpot_s=0.03, outage_wait_s=10.0)
    """A user waits for each word: voice, completion while typing. 0.03 s are 33 tokens a second."""
    standard: Objective = Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05, outage_wait_s=60.0)
    """A user reads along. 20 tokens a second are faster than people read."""
    batch: Objective = Objective(ttft_s=30.0, ttft_per_prefill=10.0, tpot_s=0.2, outage_wait_s=600.0)
    """No user waits for a single answer."""

    def of(self, slo_class: SloClass) -> Objective:
        objective: Objective = getattr(self, slo_class)
        return objective


class Result(StrEnum):
    """What a request is to goodput."""

    GOOD = "good"
    TTFT_MISSED = "ttft_missed"
    TPOT_MISSED = "tpot_missed"
    BOTH_MISSED = "both_missed"
    REJECTED = "rejected"
    FAILED = "failed"


def result(
    slo: Slo | None, outcome: Outcome, ttft_s: float | None, tpot_s: float | None, age_s: float
) -> Result | None:
    """The result of a request. None if the request does not count: its client aborted it after the first token or
    before the first token was late, or it finished and has no SLO. `age_s`: seconds from its arrival to its end.
    """
    match outcome:
        case Outcome.ABORTED:
            is_late = slo is not None and ttft_s is None and age_s > slo.ttft_s
            return Result.TTFT_MISSED if is_late else None
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
