"""The requests that one worker decodes: how many tokens they have, how long a step takes, and how much delay they bear.

The decode clock counts the steps in which every running request got a token. The clock is predicted, from the length of
a step and from the worker's stall share: no message is sent for a token.
"""

from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import Final, final

from cluster.messages.ids import RequestId
from router.load.charge import Charge
from router.load.decode_slack import NOTHING, NUM_CLASSES, Bin, DecodeSlack, LookAhead
from router.load.prefill_share import PrefillShare, share_over
from router.prediction.path_bias import PathBias
from router.prediction.worker_model import WorkerModel

SLACK_AGE_S: Final = 0.05
"""Age up to which a worker's decode slack is used again, in seconds. The slack of a request changes by at most this
time. Lower computes the slack more often; higher places requests by slack that is used up.
"""
SLACK_SHARE: Final = 0.01
"""Share of the mean TPOT budget up to which the slack of many requests is used again, while hardly any of them comes or
goes. Lower computes the slack of busy workers more often; higher places requests by slack that is used up.
"""
SLACK_CHANGE: Final = 1 / 16
"""Share of the requests that may have come or gone meanwhile. Higher places by requests that are gone; lower computes
the slack of busy workers more often.
"""
MIN_STEP_S: Final = 1e-6
"""Lower bound of the predicted length of a step, in seconds. It keeps divisors above zero, and changes nothing else."""


@final
class RunningRequests:
    __slots__ = (
        "_bias",
        "_clock_at",
        "_context_base",
        "_model",
        "_num_changed",
        "_slack",
        "_slack_at",
        "_stall_share",
        "_steps",
        "_tpot_s",
        "charges",
        "crowded_step_s",
        "has_short_steps",
        "last_step_s",
        "num_by_rank",
        "num_by_tpot",
        "num_unknown",
        "unknown_context",
    )

    def __init__(self, model: WorkerModel, stall_share: PrefillShare, bias: PathBias, now: float) -> None:
        """`stall_share`: of the same worker."""
        self._model = model
        self._bias = bias
        self._stall_share = stall_share
        self.charges: dict[RequestId, Charge] = {}
        """The running requests that this Scheduler has placed."""
        self.num_by_rank = [0] * NUM_CLASSES
        """Number of `charges`, by the rank of their class."""
        self.num_by_tpot: dict[float, int] = {}
        """The same by their TPOT objective, in seconds. Many requests have few objectives."""
        self.has_short_steps = False
        """The engine bounds its steps by the TPOT objectives of these requests."""
        self.num_unknown = 0
        """Requests that the worker reports and this Scheduler has not placed."""
        self.unknown_context = 0.0
        """KV tokens of the unknown requests."""
        self.last_step_s = MIN_STEP_S
        """Length of a step when a request last joined or left."""
        self.crowded_step_s = 0.0
        """Length of a step once the requests that are to join decode as well. 0 where no request decodes then."""
        self._tpot_s: float | None = None
        """The TPOT objective of the charged requests that bounds steps of this length. None if it is not known."""
        self._steps = 0.0
        """The decode clock."""
        self._clock_at = now
        """When the decode clock was last moved."""
        self._context_base = 0.0
        """KV tokens of the charged requests, less `_steps` for each."""
        self._slack = NOTHING
        self._slack_at = float("-inf")
        self._num_changed = 0
        """Joins and leaves since `_slack_at`."""

    @property
    def num(self) -> int:
        return len(self.charges) + self.num_unknown

    def context_tokens(self, now: float) -> float:
        """KV tokens of all running requests."""
        self._advance(now)
        return max(0.0, self._context_base + len(self.charges) * self._steps) + self.unknown_context

    def step_s(self, now: float) -> float:
        """Length of a step with all running requests, or with one request where none runs."""
        self._advance(now)
        return self.last_step_s

    @property
    def longest_step_s(self) -> float:
        """Longest step with prompts, in seconds; inf where nothing bounds it."""
        if not self.has_short_steps or not self.charges:
            return inf
        return self._model.kind.bound.longest_step_s(self.last_step_s, self.binding_tpot_s)

    @property
    def binding_tpot_s(self) -> float:
        """The TPOT objective that bounds the engine's steps, in seconds; inf without requests."""
        if self._tpot_s is None:
            self._tpot_s = self._model.kind.bound.binding_tpot_s(self.num_by_tpot, self.last_step_s)
        return self._tpot_s

    def slack(self, now: float) -> DecodeSlack:
        """The decode slack of the running requests: at most SLACK_AGE_S old, or as old as their budgets bear."""
        if not self.charges:
            return NOTHING
        age_s = now - self._slack_at
        if age_s > SLACK_AGE_S:
            bears_s = SLACK_SHARE * self._slack.mean_budget_s
            if age_s > bears_s or self._num_changed > SLACK_CHANGE * len(self.charges):
                self._advance(now)
                self._slack = self._look_ahead(self.charges.values(), now)
                self._slack_at, self._num_changed = now, 0
        return self._slack

    def outlook(self, charge: Charge, now: float) -> Bin:
        """The decode slack of one of the running requests."""
        self._advance(now)
        return self._look_ahead([charge], now).bins[0]

    def tokens_of(self, charge: Charge, now: float) -> int:
        """KV tokens of one of the running requests."""
        self._advance(now)
        return charge.num_prompt + int(self._steps - charge.start_step)

    def copied(self, stall_share: PrefillShare, now: float) -> "RunningRequests":
        """The same requests, which may leave the copy without leaving the worker."""
        self._advance(now)
        copy = RunningRequests(self._model, stall_share, self._bias, now)
        copy.charges, copy.num_by_rank = dict(self.charges), list(self.num_by_rank)
        copy.num_by_tpot, copy.has_short_steps = dict(self.num_by_tpot), self.has_short_steps
        copy.num_unknown, copy.unknown_context = self.num_unknown, self.unknown_context
        copy.last_step_s, copy.crowded_step_s = self.last_step_s, self.crowded_step_s
        copy._steps, copy._context_base = self._steps, self._context_base
        return copy

    def join(self, charge: Charge, now: float) -> None:
        """The worker decodes this request from now on."""
        self._advance(now)
        charge.start_step = self._steps
        charge.first_at = now
        self.charges[charge.request_id] = charge
        self._num_changed += 1
        self.num_by_rank[charge.rank] += 1
        self.num_by_tpot[charge.slo_tpot_s] = self.num_by_tpot.get(charge.slo_tpot_s, 0) + 1
        self._context_base += charge.num_prompt - charge.start_step

    def leave(self, charge: Charge, now: float) -> bool:
        """The request is over. Returns False where it did not run here."""
        if charge.request_id not in self.charges:
            return False
        self._advance(now)
        del self.charges[charge.request_id]
        self._num_changed += 1
        self.num_by_rank[charge.rank] -= 1
        self.num_by_tpot[charge.slo_tpot_s] -= 1
        if not self.num_by_tpot[charge.slo_tpot_s]:
            del self.num_by_tpot[charge.slo_tpot_s]
        self._context_base -= charge.num_prompt - charge.start_step
        if not self.charges:
            self._context_base = 0.0
        return True

    def set_unknown(self, number: int, context_tokens: float, now: float) -> None:
        """Requests that this Scheduler has not placed, as a report counts them, and their KV tokens."""
        self._advance(now)
        self.num_unknown, self.unknown_context = number, context_tokens

    def update_step(self) -> None:
        """Predict the length of a step anew. To be called after requests have joined or left."""
        self.last_step_s = max(MIN_STEP_S, self.step_beside_s(0 if self.num else 1, 0.0))
        self._tpot_s = None

    def step_beside_s(self, num_more: int, more_context: float) -> float:
        """Length of a step with `num_more` further requests, which have `more_context` KV tokens together. The running
        requests have the tokens that they had when a request last joined or left.
        """
        context = max(0.0, self._context_base + len(self.charges) * self._steps) + self.unknown_context
        return self._model.times.decode_s(self.num + num_more, int(context + more_context))

    def validate(self) -> None:
        """Assert every invariant."""
        assert self.num_unknown >= 0
        assert self.unknown_context >= 0.0
        assert self.last_step_s >= MIN_STEP_S
        for rank, number in enumerate(self.num_by_rank):
            assert number == sum(charge.rank == rank for charge in self.charges.values())
        assert self.num_by_tpot == Counter(charge.slo_tpot_s for charge in self.charges.values())
        for request_id, charge in self.charges.items():
            assert charge.request_id == request_id
            assert charge.start_step <= self._steps

    def _look_ahead(self, charges: Iterable[Charge], now: float) -> DecodeSlack:
        tpot_s = self.binding_tpot_s if self.has_short_steps else inf
        shares, softness = self._stall_share.shares(now), self._bias.slack_softness
        ahead = LookAhead(self.last_step_s, shares, softness, self.crowded_step_s, tpot_s, self._model.kind.bound)
        next_step = self._steps + 1.0
        for charge in charges:
            num_generated = next_step - charge.start_step
            num_left = charge.lengths.residual(int(num_generated))
            if num_left > charge.most_tokens - num_generated:
                num_left = max(1.0, charge.most_tokens - num_generated)
            budget_s = charge.slo_tpot_s * (num_generated + num_left - 1.0)
            context = charge.num_prompt + num_generated
            ahead.add(budget_s, now - charge.first_at, num_left, context, charge.rank)
        return ahead.slack()

    def _advance(self, now: float) -> None:
        """Move the decode clock."""
        if now == self._clock_at:
            return
        if self.charges:
            share = share_over(self._stall_share.shares(now), now - self._clock_at)
            step_s = min(self.last_step_s / (1.0 - share), self.longest_step_s)
            self._steps += max(0.0, now - self._clock_at) / step_s
        self._clock_at = now
