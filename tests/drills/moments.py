"""The moments of a request's life at which a drill strikes, and how the victim is held there: by stopping the engine
core that would take it on. A stopped core is a fault of its own, so none is stopped that the bystander needs, and all
but those that the fault stops go on as soon as it has struck.
"""

from collections.abc import Callable

from tests.drills.participants import SCENE_TIMEOUT_S, MomentMissed, Participants
from tests.real_cluster.service import wait_for

MID_STREAM_FRAMES = 20


def queued(participants: Participants) -> None:
    """Its prefill engine has not begun with it."""
    for worker in participants.prefills:
        participants.hold(worker.core)
    participants.send_victim()
    for worker in participants.prefills:
        if worker != participants.prefill:
            participants.release(worker.core)


def prefilling(participants: Participants) -> None:
    """The engine has computed a part of the prompt."""
    queued(participants)
    participants.advance(
        participants.prefill.core, until=lambda: participants.is_engine(participants.prefill, running=1, waiting=0)
    )


def handed_over(participants: Participants) -> None:
    """The prompt is computed and its blocks are pinned; the decode worker has the handoff, its engine not yet."""
    participants.hold(participants.other_decode.core)
    participants.send_victim()
    wait_for(lambda: participants.has_lease(participants.prefill, "redeemed"), SCENE_TIMEOUT_S, interval_s=0.01)


def pulling(participants: Participants) -> None:
    """The decode engine reads the blocks, and the prefill engine does not serve them."""
    handed_over(participants)
    participants.hold(participants.prefill.core)
    participants.release(participants.decode.core)
    wait_for(
        lambda: participants.is_engine(participants.decode, running=0, waiting=1), SCENE_TIMEOUT_S, interval_s=0.01
    )


def first_token(participants: Participants) -> None:
    """The client has its first token."""
    _streaming(participants, 1)


def mid_stream(participants: Participants) -> None:
    _streaming(participants, MID_STREAM_FRAMES)


def _streaming(participants: Participants, num_frames: int) -> None:
    """The decode engine is not done, whatever is still on its way to the client."""
    participants.send_victim()
    participants.victim.wait_for_frames(num_frames, SCENE_TIMEOUT_S)
    participants.hold(participants.decode.core)
    if participants.has_left_engine(participants.decode):
        raise MomentMissed("the decode engine is done")


MOMENTS: dict[str, Callable[[Participants], None]] = {
    "queued": queued,
    "prefilling": prefilling,
    "handed over": handed_over,
    "pulling": pulling,
    "first token": first_token,
    "mid-stream": mid_stream,
}
