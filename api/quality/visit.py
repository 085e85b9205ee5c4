"""A visit: one target is probed once. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from api.quality.comparison import Difference, ProbeResult
from api.quality.schedule import ProbeTarget
from cluster.messages.ids import WorkerId
from cluster.messages.placement import Pinned
from cluster.messages.quality import Answer


class Visit(NamedTuple):
    """What is visited."""

    target: ProbeTarget
    pinned: Pinned
    beside: WorkerId | None
    """The other worker of path P->D. None on the other paths."""
    number: int
    """How many times the target was visited before."""
    epoch: int = 0
    """Number of the reference that counted when the visit began."""

    @property
    def workers(self) -> set[WorkerId]:
        return {worker for worker in (self.pinned.prefill, self.pinned.decode) if worker is not None}


class VisitResult(NamedTuple):
    result: ProbeResult
    difference: Difference | None = None
    is_overload: bool = False
    """It did not run because the whole service has too much to do."""
    prompt: str = ""
    """The prompt that was asked for. Empty if none was, or if all were."""
    num_prompts: int = 1
    """Prompts that could be asked for."""
    answers: Mapping[str, Answer] | None = None
    """The answers by prompt, of a visit without a reference."""
    repeats: Mapping[str, Answer] = {}
    """The second answers to these prompts, as far as they came."""
