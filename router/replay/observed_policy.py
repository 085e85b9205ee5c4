"""ObservedPolicy: a placement policy, and what it saw when it chose for the requests that somebody asks about. Pure."""

from collections.abc import Callable
from typing import final

import msgspec

from cluster.messages.ids import Path, Pool, RequestId, WorkerId
from cluster.messages.placement import PlacementRequest, Prediction, Slo
from router.load.worker_state import WorkerState
from router.placement.candidates import Candidates, Choice, Policy
from router.placement.goodput import STALE_SHARE, goodput, options_of
from router.placement.placement_input import PlacementInput
from router.prediction.learned_latency import LatencyModels


class WorkerGlance(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as a placement saw it."""

    worker: WorkerId
    pool: Pool
    num_placed: int
    """Requests that were charged to the worker."""
    num_running: int
    """Requests that it decoded, those included that only its reports counted."""
    num_prompts: int
    """Prompts before it."""
    prompts_s: float
    """Predicted seconds that these take."""
    kv_share: float
    """KV tokens that were reserved, as a share of its memory. 0 if the memory is not known."""
    num_hit_tokens: int
    """Tokens of the request's prompt that it was known or expected to cache."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look of the policy at the workers, for one request."""

    request_id: RequestId
    now: float
    age_s: float
    """Seconds since the request reached the ingress."""
    slo: Slo
    workers: list[WorkerGlance]
    """Those that might take the request."""
    is_shortlist: bool
    """Other workers might, too, and were not looked at: the pools are large."""
    is_blind: bool
    """Too many workers had missed reports, and nothing was predicted."""
    unproved: list[tuple[WorkerId, WorkerId]]
    """Pairs of these workers without a proved link."""
    barred: list[tuple[WorkerId, WorkerId]]
    """Pairs of these workers whose handoffs were wrong."""
    options: list[Prediction]
    chosen: tuple[Path, WorkerId | None, WorkerId | None] | None
    """None if no worker could take the request."""


@final
class ObservedPolicy:
    def __init__(self, policy: Policy, is_wanted: Callable[[PlacementRequest], bool]) -> None:
        self._policy = policy
        self._is_wanted = is_wanted
        self._looks: list[Look] = []

    def __call__(self, placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
        choice = self._policy(placement_input, candidates, models)
        if self._is_wanted(placement_input.request):
            is_blind = candidates.stale_share > STALE_SHARE
            is_priced = self._policy is goodput and not is_blind
            options = options_of(placement_input, candidates, models) if is_priced else []
            self._looks.append(_look(placement_input, candidates, choice, options, is_blind=is_blind))
        return choice

    def take_looks(self) -> list[Look]:
        """The looks since the last call."""
        looks, self._looks = self._looks, []
        return looks


def _look(
    placement_input: PlacementInput,
    candidates: Candidates,
    choice: Choice | None,
    options: list[Prediction],
    *,
    is_blind: bool,
) -> Look:
    prefills, decodes = candidates.prefills, candidates.decodes
    chosen = None
    if choice is not None:
        names = [worker.worker if worker is not None else None for worker in (choice.prefill, choice.decode)]
        chosen = choice.path, names[0], names[1]
    pairs = [(prefill, decode) for prefill in prefills for decode in decodes]
    return Look(
        request_id=placement_input.request.request_id,
        now=placement_input.now,
        age_s=placement_input.age_s,
        slo=placement_input.slo,
        workers=[_glance(placement_input, worker) for worker in (*prefills, *decodes)],
        is_shortlist=candidates.is_shortlist,
        is_blind=is_blind,
        unproved=[(one.worker, other.worker) for one, other in pairs if one.worker not in other.links],
        barred=[(one.worker, other.worker) for one, other in pairs if candidates.is_barred(one, other)],
        options=sorted(options, key=lambda option: option.cost),
        chosen=chosen,
    )


def _glance(placement_input: PlacementInput, worker: WorkerState) -> WorkerGlance:
    return WorkerGlance(
        worker=worker.worker,
        pool=worker.pool,
        num_placed=worker.num_placed,
        num_running=worker.running.num,
        num_prompts=len(worker.prompts),
        prompts_s=worker.prompts.seconds(placement_input.now),
        kv_share=worker.kv_reserved / worker.kv_capacity if worker.kv_capacity else 0.0,
        num_hit_tokens=placement_input.hit(worker),
    )
