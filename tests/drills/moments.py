"""The moments of a request's life at which a drill strikes, and how the victim is held there: by stopping the engine
core that would take it on. A stopped core is a fault of its own, so none is stopped that the bystander needs, and all
but those that the fault stops go on as soon as it has struck.
"""

from collections.abc import Callable

from tests.drills.stage import SCENE_TIMEOUT_S, MomentMissed, Stage
from tests.real_cluster.service import wait_for

MID_STREAM_FRAMES = 20


def queued(stage: Stage) -> None:
    """Its prefill engine has not begun with it."""
    for worker in stage.prefills:
        stage.hold(worker.core)
    stage.send_victim()
    for worker in stage.prefills:
        if worker != stage.prefill:
            stage.release(worker.core)


def prefilling(stage: Stage) -> None:
    """The engine has computed a part of the prompt."""
    queued(stage)
    stage.advance(stage.prefill.core, until=lambda: stage.is_engine(stage.prefill, running=1, waiting=0))


def handed_over(stage: Stage) -> None:
    """The prompt is computed and its blocks are pinned; the decode worker has the handoff, its engine not yet."""
    stage.hold(stage.other_decode.core)
    stage.send_victim()
    wait_for(lambda: stage.has_lease(stage.prefill, "redeemed"), SCENE_TIMEOUT_S, interval_s=0.01)


def pulling(stage: Stage) -> None:
    """The decode engine reads the blocks, and the prefill engine does not serve them."""
    handed_over(stage)
    stage.hold(stage.prefill.core)
    stage.release(stage.decode.core)
    wait_for(lambda: stage.is_engine(stage.decode, running=0, waiting=1), SCENE_TIMEOUT_S, interval_s=0.01)


def first_token(stage: Stage) -> None:
    """The client has its first token."""
    _streaming(stage, 1)


def mid_stream(stage: Stage) -> None:
    _streaming(stage, MID_STREAM_FRAMES)


def _streaming(stage: Stage, num_frames: int) -> None:
    """The decode engine is not done, whatever is still on its way to the client."""
    stage.send_victim()
    stage.victim.wait_for_frames(num_frames, SCENE_TIMEOUT_S)
    stage.hold(stage.decode.core)
    if stage.has_left_engine(stage.decode):
        raise MomentMissed


MOMENTS: dict[str, Callable[[Stage], None]] = {
    "queued": queued,
    "prefilling": prefilling,
    "handed over": handed_over,
    "pulling": pulling,
    "first token": first_token,
    "mid-stream": mid_stream,
}
