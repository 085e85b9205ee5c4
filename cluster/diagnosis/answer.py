"""An answer of `baton why`: why something is as it is, the numbers that show it, and what to do. Pure."""

from enum import StrEnum

import msgspec

from cluster.diagnosis.figures import Figures
from cluster.messages.operations import SchedulerStatus, ServiceStatus, WorkerCondition, WorkerStatus


class Weight(StrEnum):
    """What an answer is about. The first one is shown first."""

    FAULT = "fault"
    """Something does not work that should."""
    LIMIT = "limit"
    """Everything works, and more would be served with other settings or more workers."""
    NORMAL = "normal"
    """Everything works as it should."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    question: str
    answer: str
    evidence: list[str]
    """What was found, with numbers."""
    todo: str
    """What an operator can do. Empty if there is nothing to do."""
    weight: Weight = Weight.NORMAL


class RunningFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules are asked about."""

    status: ServiceStatus
    figures: Figures
    during: str = "since the processes have started"
    """The time that the counters of `figures` cover, in words."""

    @property
    def workers(self) -> list[WorkerStatus]:
        return [worker for scheduler in self.status.schedulers for worker in scheduler.workers]


def usable(scheduler: SchedulerStatus) -> list[WorkerStatus]:
    """The workers that get requests like any other."""
    return [worker for worker in scheduler.workers if worker.condition is WorkerCondition.READY]


def in_cell(scheduler: SchedulerStatus) -> str:
    """Which cell a text is about, if there are several."""
    return f" of cell {scheduler.cell}" if isinstance(scheduler.cell, str) else ""


def share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


def number(value: float) -> str:
    return f"{value:,.0f}"
