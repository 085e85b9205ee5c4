"""One drill: bring a request to its moment, strike, and measure what comes of it."""

import time
from dataclasses import dataclass

from tests.drills.faults import FAULTS, Fault
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
    kv_back_s: dict[str, float] | None = None
    """Seconds until the KV blocks were free, by surviving engine."""
    leases_ended: dict[str, int] | None = None
    """How many leases of surviving prefill workers ended how."""
    whole_s: float | None = None
    failure: str = ""


def run_drill(live: LiveProcesses, cell: Cell, measured: Measured) -> None:
    """Fills in `measured` as far as it comes."""
    fault = FAULTS[cell.fault]
    participants = _participants_at(live, cell)
    try:
        struck_at = time.monotonic()
        _strike(participants, fault, cell)
        measured.client = participants.victim.outcome
        measured.silence_s = participants.victim.seen.longest_silence_s(struck_at)
        measured.kv_back_s = _wait_for_blocks(participants, fault, cell)
        measured.leases_ended = participants.leases_ended()
        measured.bystander_silence_s = participants.bystander.seen.longest_silence_s(struck_at)
        wait_for(participants.is_bystander_counted, COUNTED_WITHIN_S)
        participants.bystander.leave()
        measured.bystander = participants.bystander.outcome
        wait_for(lambda: not _held(participants, _survivors(participants, fault)), cell.bounds.kv_back_s * PATIENCE)
    finally:
        participants.close()
    live.wait_until_whole(NUM_REPLICAS, cell.bounds.whole_s * PATIENCE)
    measured.whole_s = time.monotonic() - struck_at


def _participants_at(live: LiveProcesses, cell: Cell) -> Participants:
    """A participants with the victim at its moment. If the moment passes unseen, the participants is set up again."""
    for attempt in range(ATTEMPTS):
        participants = Participants(live, cell.seed + attempt * 1000)
        try:
            MOMENTS[cell.moment](participants)
            if not participants.victim.has_ended:
                return participants
        except MomentMissed:
            pass
        except BaseException:
            participants.close()
            raise
        participants.close()
        live.wait_until_whole(NUM_REPLICAS, cell.bounds.whole_s * PATIENCE)
    raise MomentMissed(f"{cell.moment}: {ATTEMPTS} times")


def _strike(participants: Participants, fault: Fault, cell: Cell) -> None:
    """Until the fault is over and the victim has ended."""
    struck_at = time.monotonic()
    with fault.strike(participants):
        participants.release_all(but=fault.stops(participants))
        has_ended = participants.victim.wait_for_end(fault.lasts_s)
        if has_ended and not fault.ends_with_answer:
            _wait_until(struck_at + fault.lasts_s)
    participants.victim.wait_for_end(ANSWER_S + cell.bounds.silence_s * PATIENCE)


def _wait_for_blocks(participants: Participants, fault: Fault, cell: Cell) -> dict[str, float]:
    """Seconds until each surviving engine has nothing of the victim, from now. Once is enough: what an engine has after
    that is a link's proof.
    """
    started_at = time.monotonic()
    survivors = _survivors(participants, fault)
    back_s = {str(worker): 0.0 for worker in survivors}
    deadline = started_at + cell.bounds.kv_back_s * PATIENCE
    while held := _held(participants, survivors):
        assert time.monotonic() < deadline, f"still held: {held}"
        survivors = [worker for worker in survivors if str(worker) in held]
        back_s |= dict.fromkeys(held, time.monotonic() - started_at)
    return back_s


def _held(participants: Participants, workers: list[Replica]) -> dict[str, str]:
    """What each worker still has of the victim, if anything."""
    now = participants.live.snapshot_of_the_living()
    held = {str(worker): participants.still_held(worker, now) for worker in workers}
    return {worker: what for worker, what in held.items() if what}


def _survivors(participants: Participants, fault: Fault) -> list[Replica]:
    return [worker for worker in participants.prefills + participants.decodes if worker != fault.kills(participants)]


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))  # noqa: TID251  # the fault lasts so long
