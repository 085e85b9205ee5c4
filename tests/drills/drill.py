"""One drill: bring a request to its moment, strike, and measure what comes of it."""

import time
from dataclasses import dataclass

from tests.drills.faults import FAULTS, Fault
from tests.drills.kv_clock import Back, KvClock
from tests.drills.matrix import NUM_REPLICAS, Cell
from tests.drills.moments import MOMENTS
from tests.drills.participants import MomentMissed, Participants
from tests.drills.processes import LiveProcesses, Replica
from tests.real_cluster.service import wait_for

ATTEMPTS = 3
ANSWER_S = 30.0
"""Seconds that the tokens of an answer may take."""
COUNTED_WITHIN_S = 2.0
PATIENCE = 4.0
"""Times its bound, until a measurement is given up: a bound that is missed shall say by how much."""


@dataclass
class Measured:
    cell: Cell
    client: str = "-"
    """What the client saw."""
    silence_s: float | None = None
    """The longest time without a token that the client had from the fault on."""
    bystander: str = "-"
    bystander_silence_s: float | None = None
    """The longest silence of the bystander, in seconds."""
    over_s: float | None = None
    """Seconds from the fault until it was over and the victim had ended."""
    decoding: set[str] | None = None
    """The workers that have decoded the answer, or might have."""
    kv_back: dict[str, Back] | None = None
    """When the KV blocks were free, by surviving engine."""
    leases_ended: dict[str, int] | None = None
    """How many leases of surviving prefill workers ended how."""
    whole_s: float | None = None
    failure: str = ""


def run_drill(live: LiveProcesses, cell: Cell, measured: Measured) -> None:
    """Fills in `measured` as far as it comes."""
    fault = FAULTS[cell.fault]
    participants = _participants_at(live, cell)
    try:
        survivors = _survivors(participants, fault)
        with KvClock(lambda: _left_on(participants, survivors)) as clock:
            struck_at = time.monotonic()
            _strike(participants, fault, cell)
            measured.over_s = clock.over()
            measured.client = participants.victim.outcome
            measured.silence_s = participants.victim.seen.longest_silence_s(struck_at)
            measured.kv_back = clock.wait(cell.bounds.kv_back_s * PATIENCE)
        measured.decoding = participants.decoding()
        measured.leases_ended = participants.leases_ended()
        measured.bystander_silence_s = participants.bystander.seen.longest_silence_s(struck_at)
        wait_for(participants.is_bystander_counted, COUNTED_WITHIN_S)
        participants.bystander.leave()
        measured.bystander = participants.bystander.outcome
        wait_for(lambda: _is_nothing_left_on(participants, survivors), cell.bounds.kv_back_s * PATIENCE)
    finally:
        participants.close()
    live.wait_until_whole(NUM_REPLICAS, cell.bounds.whole_s * PATIENCE)
    measured.whole_s = time.monotonic() - struck_at


def _participants_at(live: LiveProcesses, cell: Cell) -> Participants:
    """Participants with the victim at its moment. If the moment passes unseen, they are set up again."""
    why = "the victim had ended"
    for attempt in range(ATTEMPTS):
        participants = Participants(live, cell.seed + attempt * 1000)
        try:
            MOMENTS[cell.moment](participants)
            if not participants.victim.has_ended:
                return participants
        except MomentMissed as error:
            why = str(error)
        except BaseException:
            participants.close()
            raise
        participants.close()
        live.wait_until_whole(NUM_REPLICAS, cell.bounds.whole_s * PATIENCE)
    raise MomentMissed(f"{cell.moment}, {ATTEMPTS} times: {why}")


def _strike(participants: Participants, fault: Fault, cell: Cell) -> None:
    """Until the fault is over and the victim has ended."""
    struck_at = time.monotonic()
    with fault.strike(participants):
        participants.release_all(but=fault.stops(participants))
        has_ended = participants.victim.wait_for_end(fault.lasts_s)
        if has_ended and not fault.ends_with_answer:
            _wait_until(struck_at + fault.lasts_s)
    participants.victim.wait_for_end(ANSWER_S + cell.bounds.silence_s * PATIENCE)


def _left_on(participants: Participants, workers: list[Replica]) -> dict[str, str | None]:
    """What each worker has of the victim."""
    now = participants.live.snapshot_of_the_living()
    return {str(worker): participants.still_held(worker, now) for worker in workers}


def _is_nothing_left_on(participants: Participants, workers: list[Replica]) -> bool:
    return all(what == "" for what in _left_on(participants, workers).values())


def _survivors(participants: Participants, fault: Fault) -> list[Replica]:
    return [worker for worker in participants.prefills + participants.decodes if worker != fault.kills(participants)]


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))  # noqa: TID251  # the fault lasts so long
