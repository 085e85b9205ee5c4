"""What the probe shows of itself, for operators and for the other ingress replicas. Pure."""

from enum import StrEnum

import msgspec

from api.quality.comparison import Difference, ProbeResult
from cluster.messages.ids import Path, WorkerId


class TargetView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker on a path."""

    worker: WorkerId
    path: Path
    score: float | None = None
    """Share of right answers among the last ones. None without an answer."""
    result: ProbeResult | None = None
    """The latest one. None before the first probe."""
    at: float | None = None
    """Unix time of the latest probe."""
    difference: Difference | None = None
    """Where an answer last left the reference."""
    quarantined: str | None = None
    """Why the worker is in quarantine, or would be if `quality_probe.quarantine` were on."""


class LearningState(StrEnum):
    LEARNING = "learning"
    LEARNED = "learned"
    FAILED = "failed"
    """The note of the reference says why. The probe goes on to learn."""


class ProbeRun(msgspec.Struct, frozen=True, kw_only=True):
    """A round that an operator has asked for."""

    id: str
    num_done: int
    num_targets: int
    learning: LearningState | None = None
    """None if no new reference was asked for."""

    @property
    def is_over(self) -> bool:
        if self.learning is not None:
            return self.learning is not LearningState.LEARNING
        return self.num_done >= self.num_targets


class ReferenceView(msgspec.Struct, frozen=True, kw_only=True):
    origin: str
    """`file`, `learned`, or `none` while the first one is learned."""
    learned_at: float | None = None
    """Unix time."""
    num_prompts: int = 0
    is_at_fault: bool = False
    """Whether all workers differ from it."""
    note: str | None = None
    """What an operator should know of it."""


class QualityView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `GET /baton/quality`."""

    enabled: bool = True
    replica: str | None = None
    """The ingress replica that probes. None if no replica does."""
    quarantine: bool = False
    """Whether workers that answer wrongly get no requests."""
    every_s: float = 0.0
    reference: ReferenceView | None = None
    targets: list[TargetView] = []
    run: ProbeRun | None = None
    """The latest round that an operator has asked for."""


class CommandKind(StrEnum):
    RUN = "run"
    """Probe all workers on all paths now."""
    LEARN = "learn"
    """Forget the reference, and learn another one now."""
    RELEASE = "release"
    """End the quarantine of a worker."""


class ProbeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator asks of the replica that probes."""

    id: str
    kind: CommandKind
    worker: WorkerId | None = None
