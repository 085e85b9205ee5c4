"""What a stimulus log tells about one request: facts in order, without words. Pure."""

import msgspec

from cluster.messages.ids import IngressId, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest
from cluster.messages.scheduler_events import RequestClosed
from router.recording.records import Answer
from router.replay.observed_policy import Look


class LeftOut(msgspec.Struct, frozen=True):
    """A worker that lived, or had lived just before, and that could not be chosen."""

    worker: WorkerId
    why: str


class Question(msgspec.Struct, kw_only=True):
    """The request is asked for: for the first time, or anew."""

    now: float
    ingress: IngressId | None
    request: PlacementRequest
    num_waiting: int
    """Requests that waited."""
    answer: Answer | None = None
    """None while it waits."""
    answered_at: float | None = None
    looks: list[Look] = []
    """Of the policy, up to the answer. Only the first and the last few are kept."""
    left_out: list[LeftOut] = []
    """At the latest look."""
    differs: str | None = None
    """What the replay decides, where that is something else."""
    prefill_done_at: float | None = None
    first_token_at: float | None = None
    pause_asked_at: float | None = None
    workers_lost: list[tuple[float, WorkerId, str]] = []
    """Workers of the placement that left or could not be reached afterwards."""
    num_neighbours: int = 0
    """Requests that were placed on the same workers from the placement to the first token."""
    neighbour_tokens: int = 0
    """Tokens of their prompts."""

    @property
    def placement(self) -> Placement | None:
        return self.answer if isinstance(self.answer, Placement) else None

    @property
    def workers(self) -> set[WorkerId]:
        placement = self.placement
        if placement is None:
            return set()
        return {worker for worker in (placement.prefill, placement.decode) if worker is not None}

    @property
    def age_at_answer_s(self) -> float | None:
        """Age of the request when it was answered, in seconds."""
        return None if self.answered_at is None else self.request.age_s + self.answered_at - self.now


class Facts(msgspec.Struct, kw_only=True):
    """All that the log has of one session."""

    request_id: RequestId
    epoch: int
    questions: list[Question] = []
    closed: RequestClosed | None = None
    closed_at: float | None = None
    is_inexact: bool = False
    """Records are missing before or within, so what was considered may not be what was considered then."""

    @property
    def arrived_at(self) -> float:
        first = self.questions[0]
        return first.now - first.request.age_s

    @property
    def last(self) -> Question:
        return self.questions[-1]

    @property
    def first_served(self) -> Question:
        """The placement that gave the first token. The latest one if none did."""
        for question in self.questions:
            if question.first_token_at is not None:
                return question
        return self.last
