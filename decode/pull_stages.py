"""The parts of a pull as stages of the timeline of its request. Pure."""

from cluster.messages.timeline import Note
from cluster.step_stream.stage_log import StageLog
from kvtransfer.telemetry import Pull


def note_pull(stages: StageLog, pull: Pull) -> None:
    began_at = pull.ended_at - pull.seconds
    posted_at = min(began_at + pull.post_s, pull.ended_at)
    moved_at = min(posted_at + pull.transfer_s, pull.ended_at)
    if pull.connect_s:
        stages.add("pull_connect", began_at - pull.connect_s, began_at)
    stages.add("pull_post", began_at, posted_at)
    moved: dict[str, Note] = {"bytes": pull.num_bytes}
    if pull.transfer_s:
        moved["gb_per_s"] = round(pull.num_bytes / pull.transfer_s / 1e9, 3)
    stages.add("pull_transfer", posted_at, moved_at, **moved)
    stages.add("pull_notice", moved_at, pull.ended_at)
