"""Whole texts: how they are read, and what was found in them."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, get_args

from api.safety.judge import Judged, PolicyJudge, judged_text
from api.safety.policy import OnPersonalData, PersonalKind, Policy, Threshold
from api.safety.scans.rules import TextRole
from api.safety.stages import GuardNotes, Stages, ask_guard
from api.safety.verdict import MEDIUM_FROM, Category, highest

LONG_INPUT = 1024
"""Characters of a request, at most, that are screened on the event loop: some milliseconds. More holds up other
requests for longer; fewer costs small requests switches of threads.
"""
SLICE_LENGTH = 1024
"""Characters that are screened at a time in the thread. More holds up what waits for the thread, and the event loop,
which needs the interpreter's lock; fewer changes threads more often.
"""
ANYTHING = Policy(
    thresholds=dict.fromkeys(Category, Threshold.OFF),
    personal_data_in=dict.fromkeys(get_args(PersonalKind), OnPersonalData.MASK),
    personal_data_out=dict.fromkeys(get_args(PersonalKind), OnPersonalData.MASK),
)
"""It blocks nothing, so that the whole text is read; except for what no policy may let pass."""

T = TypeVar("T")
InThread = Callable[[Callable[[], T]], Awaitable[T]]


class Scored(NamedTuple):
    """What was found in a text."""

    scores: dict[str, float]
    flagged: set[str]
    error: str
    """Why a stage has not scanned it."""


async def read_whole(judged: Judged, text: str, in_thread: InThread[Any] | None) -> None:
    """Screen a text: on the event loop, or slice by slice in a thread that others wait for, too."""
    if in_thread is None:
        judged.text.feed(text)
        judged.text.finish()
        return
    for begin in range(0, len(text), SLICE_LENGTH):
        await in_thread(partial(judged.text.feed, text[begin : begin + SLICE_LENGTH]))
        if judged.judge.blocked:
            break
    await in_thread(judged.text.finish)


def scored_by(judges: Sequence[PolicyJudge], notes: GuardNotes) -> Scored:
    """What the scans of texts, and the guard, have found."""
    scores = highest([notes.scores, *(of_stage for judge in judges for of_stage in judge.scores.values())])
    blocked = notes.blocked.union(*(judge.blocked for judge in judges))
    flagged = blocked | {category for category, score in scores.items() if score >= MEDIUM_FROM}
    return Scored({str(category): score for category, score in scores.items()}, {*map(str, flagged)}, notes.error)


async def looked_through(
    text: str, roles: Sequence[TextRole], stages: Stages, in_thread: InThread[Any]
) -> tuple[list[PolicyJudge], GuardNotes]:
    """What all stages find in a text, whatever a policy does about it. `roles`: whose text it may be; the scans read it
    in each of them, and the guard in the first one.
    """
    judges = list[PolicyJudge]()
    for role in roles:
        judged = judged_text(ANYTHING, None, role, stages.rules, stages.classifier)
        await read_whole(judged, text, in_thread if len(text) > LONG_INPUT else None)
        judges.append(judged.judge)
    notes = GuardNotes()
    if stages.guard is not None:
        await ask_guard(stages, text, ANYTHING, notes, roles[0])
    return judges, notes


async def scored_text(text: str, stages: Stages, in_thread: InThread[Any]) -> Scored:
    """The scores that all stages give a text, whatever a policy does about it."""
    return scored_by(*await looked_through(text, [TextRole.DOCUMENT], stages, in_thread))
