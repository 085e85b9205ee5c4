"""Preemption: which running requests of lower classes pause, so that a request of a higher class meets its SLO.

Engines order prompts by deadline, so a prompt never needs the room of a prompt. What keeps a request out is what
others decode: their KV memory, and the length of the steps that they share. So requests that decode pause.

1. A pause is weighed by predicted goodput. What the request gains on the worker without the paused ones is predicted by
   the placement policy itself, on a copy of the worker (router/load/what_if.py). What a paused request loses is the
   rise of the probability that it misses its TPOT objective if it is away for LONGEST_PAUSE_S and is then computed
   anew, and the requests that find no time because of that computation. Each of them counts as one, whatever its class.
2. Only a strictly lower class pauses. A class whose objective does not bear LONGEST_PAUSE_S never pays for it.
3. Nothing goes back and forth: the gain has a floor. A request pauses MAX_PAUSES times at most, after LEAST_RUN_S of
   decoding, and for LONGEST_PAUSE_S, or longer while no worker takes it. All pauses together take a bounded share of
   the engines' time.

A request that is asked to pause stays charged to its worker until its ingress has acted. The request that it pauses for
is placed at once, on the prediction.
"""

from typing import Final, final

from cluster.messages.ids import Pool
from router.admission.verdict import gain
from router.load.charge import Charge
from router.load.decode_slack import NUM_CLASSES, logistic
from router.load.live_workers import LiveWorkers
from router.load.what_if import without
from router.load.worker_state import WorkerState
from router.placement.candidates import Candidates, Choice
from router.placement.placement_input import PlacementInput
from router.placement.placer import Placer

LONGEST_PAUSE_S: Final = 10.0
"""Time after which a paused request is placed wherever it does the least harm, in seconds. Longer keeps workers free
for higher classes, and pauses fewer requests, since fewer can afford it; shorter brings paused requests back while the
others still need the room.
"""
LEAST_GAIN: Final = 0.3
"""Requests within their SLO that pauses must add for one request. Higher lets requests of higher classes miss their
SLO; lower pauses requests for predictions that are not certain.
"""
LEAST_RISE: Final = 0.05
"""Requests within their SLO that twice as many pauses must add. Higher leaves the request at more risk; lower pauses
many requests for little.
"""
MAX_PAUSES: Final = 2
"""Times that one request is paused. More interrupts long answers again and again; fewer leaves no request to pause in a
long rush.
"""
LEAST_RUN_S: Final = 2.0
"""Time for which a request decodes before it is paused, in seconds. Longer protects requests that have just come back;
shorter computes a prompt for a few tokens.
"""
MAX_AT_ONCE: Final = 32
"""Requests that pause for one request. More empties workers whose steps are long because of very many requests; fewer
interrupts less.
"""
NUM_WORKERS: Final = 2
"""Workers that are considered for one request. More costs the Scheduler time while workers are full; fewer misses
workers that fewer requests would have to leave.
"""
LOOK_AGAIN_S: Final = 0.1
"""Time for which no request of a class looks for others to pause after one has found none, in seconds. Longer finds
them later; shorter costs the Scheduler time while workers are full.
"""
TIME_SHARE: Final = 0.05
"""Share of all workers' time that the computations after pauses may take. Higher spends more time on computing prompts
twice; lower makes rushes of higher classes wait.
"""
BURST_S: Final = 4.0
"""Seconds of each worker's time that pauses may take at once. Higher pauses many requests in one rush; lower spreads
pauses over time.
"""
LEAST_COST_S: Final = 0.02
"""Least time that a pause counts as, in seconds: with TIME_SHARE it bounds the pauses per second. Higher pauses fewer
requests with short contexts; lower sends more messages.
"""
GONE_WITHIN_S: Final = 1.0
"""Time within which a request that was asked to pause is expected to have left its worker, in seconds. After that it
is expected to stay. Longer places requests where others still run; shorter pauses others in place of those that leave.
"""


@final
class Preemption:
    __slots__ = ("_asked", "_budget_at", "_budget_s", "_placer", "_quiet_until", "_workers")

    def __init__(self, placer: Placer, workers: LiveWorkers) -> None:
        self._placer = placer
        self._workers = workers
        self._asked: list[Charge] = []
        """Requests that are to pause, and whose ingresses have not been asked yet."""
        self._quiet_until = [float("-inf")] * NUM_CLASSES
        """By rank: until when no request of the class looks for others to pause."""
        self._budget_s = 0.0
        """Engine time that pauses may take now, in seconds, at the time `_budget_at`."""
        self._budget_at: float | None = None

    def take_asked(self) -> list[Charge]:
        """The requests whose ingresses must be asked to pause them. Each is given once."""
        if not self._asked:
            return []
        asked, self._asked = self._asked, []
        return asked

    def choose(self, placement_input: PlacementInput, candidates: Candidates, value: float) -> Choice | None:
        """The placement of a request on a worker that others leave for it. They are asked to pause when the choice is
        taken. None if pauses gain too little. `value`: requests within their SLO that the request adds without pauses.
        """
        rank, now = placement_input.rank, placement_input.now
        if 1.0 - value < LEAST_GAIN or now < self._quiet_until[rank]:
            return None
        best: _Plan | None = None
        for worker in self._worth_a_look(placement_input, candidates):
            plan = self._plan(placement_input, candidates, worker, value)
            if plan is not None and (best is None or plan.net > best.net):
                best = plan
        if best is None:
            for lower in range(rank, NUM_CLASSES):
                self._quiet_until[lower] = now + LOOK_AGAIN_S
            return None
        self._ask(best.pauses, now)
        return best.choice

    def _worth_a_look(self, placement_input: PlacementInput, candidates: Candidates) -> list[WorkerState]:
        """The least crowded of the workers that decode requests of a lower class."""
        now, least = placement_input.now, placement_input.rank + 1
        found = [
            (worker.crowding_s(now), number, worker)
            for number, worker in enumerate([*candidates.decodes, *candidates.prefills])
            if sum(worker.running.num_by_rank[least:])
        ]
        found.sort(key=_crowding)
        return [worker for _, _, worker in found[:NUM_WORKERS]]

    def _plan(
        self, placement_input: PlacementInput, candidates: Candidates, worker: WorkerState, value: float
    ) -> "_Plan | None":
        """The pauses on one worker that gain most. None if they gain too little, or go beyond the budget."""
        now, bias = placement_input.now, self._workers.models.bias
        leaving = [charge for charge in worker.running.charges.values() if _is_leaving(charge, now)]
        pauses = _Pauses(placement_input, worker)
        best: _Plan | None = None
        number = 0 if leaving else 1
        while number <= len(pauses.in_order):
            chosen = pauses.in_order[:number]
            if pauses.seconds(number) > self._budget(now):
                break
            left = without(worker, [*leaving, *[pause.charge for pause in chosen]], bias, now)
            choice = self._placer.choose(placement_input, _only(placement_input, candidates, worker, left))
            net = _gain_on(choice, left) - value - sum([pause.loss for pause in chosen])
            least = LEAST_GAIN if best is None else best.net + LEAST_RISE
            if choice is not None and net >= least:
                best = _Plan(_on_real(choice, left, worker, number), chosen, net)
            if number == len(pauses.in_order):
                break
            number = min(max(1, 2 * number), len(pauses.in_order))
        return best

    def _ask(self, pauses: "list[_PauseOf]", now: float) -> None:
        for pause in pauses:
            pause.charge.pause_asked_at = now
            self._budget_s -= pause.seconds
            self._asked.append(pause.charge)

    def _budget(self, now: float) -> float:
        """Engine time that pauses may take now, in seconds."""
        num_workers = max(1, len(self._workers.by_id))
        most_s = BURST_S * num_workers
        if self._budget_at is None:
            self._budget_s = most_s
        else:
            self._budget_s = min(most_s, self._budget_s + TIME_SHARE * num_workers * (now - self._budget_at))
        self._budget_at = now
        return self._budget_s


@final
class _PauseOf:
    """The pause of one request, and what it costs."""

    __slots__ = ("charge", "loss", "num_tokens", "seconds")

    def __init__(self, placement_input: PlacementInput, worker: WorkerState, charge: Charge) -> None:
        now, running = placement_input.now, worker.running
        self.charge = charge
        self.num_tokens = running.tokens_of(charge, now)
        computed_s = worker.model.times.prefill_s(self.num_tokens, 0, worker.max_step_tokens)
        self.seconds = max(LEAST_COST_S, computed_s)
        """Engine time that the pause takes: the prompt and the answer so far are computed anew."""
        outlook = running.outlook(charge, now)
        away_s = (1 + charge.num_pauses) * LONGEST_PAUSE_S + computed_s  # earlier pauses are not in the outlook
        late = (away_s - outlook.slack_s) / outlook.softness_s
        self.loss = max(0.0, logistic(late) - outlook.miss) + placement_input.others.time_price * computed_s
        """Requests within their SLO that the pause is expected to take away."""


@final
class _Pauses:
    """The requests of one worker that can pause for another request, those that lose least first."""

    __slots__ = ("in_order",)

    def __init__(self, placement_input: PlacementInput, worker: WorkerState) -> None:
        rank, now = placement_input.rank, placement_input.now
        able = [
            _PauseOf(placement_input, worker, charge)
            for charge in worker.running.charges.values()
            if charge.rank > rank and _can_pause(charge, now)
        ]
        able.sort(key=_order)
        self.in_order = able[:MAX_AT_ONCE]

    def seconds(self, number: int) -> float:
        """Engine time that the first `number` pauses take."""
        return sum([pause.seconds for pause in self.in_order[:number]])


@final
class _Plan:
    __slots__ = ("choice", "net", "pauses")

    def __init__(self, choice: Choice, pauses: list[_PauseOf], net: float) -> None:
        self.choice = choice
        self.pauses = pauses
        self.net = net
        """Requests within their SLO that the pauses add."""


def _can_pause(charge: Charge, now: float) -> bool:
    if not charge.can_pause or charge.pause_asked_at is not None or charge.num_pauses >= MAX_PAUSES:
        return False
    return now - charge.first_at >= LEAST_RUN_S


def _is_leaving(charge: Charge, now: float) -> bool:
    return charge.pause_asked_at is not None and now - charge.pause_asked_at < GONE_WITHIN_S


def _order(pause: _PauseOf) -> tuple[int, float, int]:
    """The lowest class first, then who loses least, to a hundredth, and then who frees most memory."""
    return -pause.charge.rank, round(pause.loss, 2), -pause.num_tokens


def _crowding(found: tuple[float, int, WorkerState]) -> tuple[float, int]:
    return found[0], found[1]


def _only(
    placement_input: PlacementInput, candidates: Candidates, worker: WorkerState, left: WorkerState
) -> Candidates:
    """The candidates with `left` in place of the worker, and no other worker that decodes."""
    request = placement_input.request
    is_decode = worker.pool is Pool.DECODE
    prefills, decodes = (candidates.prefills, [left]) if is_decode else ([left], list[WorkerState]())
    return Candidates(request.path, prefills, decodes, candidates.stale_share, candidates.barred, request.can_hand_over)


def _gain_on(choice: Choice | None, left: WorkerState) -> float:
    """The gain of a choice. Nothing if another worker would generate the answer: it needs no pause."""
    if choice is None or choice.prediction is None or (choice.decode or choice.prefill) is not left:
        return 0.0
    return gain(choice.prediction)


def _on_real(choice: Choice, left: WorkerState, worker: WorkerState, number: int) -> Choice:
    """The choice with the worker itself in place of its copy."""
    return Choice(
        choice.path,
        worker if choice.prefill is left else choice.prefill,
        worker if choice.decode is left else choice.decode,
        f"{choice.why}, with {number} requests of lower classes paused",
        choice.work,
        choice.prediction,
        choice.considered,
    )
