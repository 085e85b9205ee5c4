"""Learner: makes a reference of the answers on which most workers agree, and learns what rounding is. Pure.

Each target answers each prompt twice. A worker's answers are those on the path on which it works alone (P or D): on
path P->D one wrong worker would make all its partners disagree. The candidate is the answer that is nearest to more
than half of the workers, so that a wrong worker that is near the others is not chosen. It becomes the reference if more
than half of the workers agree with it. A prompt without such an answer has no reference.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from api.quality.comparison import compared
from api.quality.schedule import ProbeTarget
from api.quality.tolerances import MIN_AGREEMENT, sample_of, tolerance_of
from cluster.messages.ids import Path
from cluster.messages.quality import Answer
from kvtransfer.verify import MAX_TOLERANCE

MAX_CANDIDATES = 8
"""Answers of a prompt that may become its reference. More takes time in a large cluster; fewer may all be of wrong
workers.
"""
MAX_COMPARED = 64
"""Answers with which a candidate is compared to find the best one. More takes time in a large cluster; fewer chooses
by chance.
"""


class AnswerTwice(NamedTuple):
    first: Answer
    again: Answer | None
    """The same prompt once more, from the cache. None if no second answer came."""


class Learner:
    def __init__(self, prompts: Collection[str]) -> None:
        self._answers: dict[str, dict[ProbeTarget, AnswerTwice]] = {prompt: {} for prompt in prompts}

    def note(self, target: ProbeTarget, prompt: str, answer: Answer, again: Answer | None = None) -> None:
        self._answers[prompt][target] = AnswerTwice(answer, again)

    def keep(self, targets: Collection[ProbeTarget]) -> None:
        """Forget the answers of workers that are gone."""
        for of_prompt in self._answers.values():
            for gone in of_prompt.keys() - set(targets):
                del of_prompt[gone]

    def _has_answered(self, target: ProbeTarget) -> bool:
        return any(target in of_prompt for of_prompt in self._answers.values())

    def learned(self, targets: Collection[ProbeTarget], *, waits_for_all: bool = True) -> dict[str, Answer] | None:
        """The answers on which most workers agree. None until every target has answered, or half of them if it does not
        wait for all. Empty if the workers do not agree on any prompt.
        """
        num = sum(map(self._has_answered, targets))
        if not num or (num < len(targets) if waits_for_all else 2 * num < len(targets)):
            return None
        limit = self._limit()
        found = {prompt: _majority(prompt, self._alone(prompt), limit) for prompt in self._answers}
        return {prompt: answer for prompt, answer in found.items() if answer is not None}

    def tolerances(self, reference: Mapping[str, Answer]) -> dict[Path, float]:
        """What rounding is on each path, by the workers whose answers all agree with the reference."""
        limit = self._limit()
        samples: dict[Path, list[float]] = {}
        for target in {target for of_prompt in self._answers.values() for target in of_prompt}:
            sample = self._sample(target, reference, limit)
            if sample is not None:
                samples.setdefault(target.path, []).append(sample)
        return {path: tolerance_of(several) for path, several in samples.items()}

    def _alone(self, prompt: str) -> list[Answer]:
        """An answer of each worker."""
        several = self._answers[prompt].items()
        return [twice.first for target, twice in several if target.path is not Path.PREFILL_DECODE]

    def _limit(self) -> float:
        """Largest distance up to which two workers agree: what workers differ from themselves, or MIN_AGREEMENT."""
        targets = {target for of_prompt in self._answers.values() for target in of_prompt}
        samples = [
            sample_of([distance for prompt in self._answers for distance in self._repeated(target, prompt)])
            for target in targets
            if target.path is not Path.PREFILL_DECODE
        ]
        return max(MIN_AGREEMENT, tolerance_of(samples)) if samples else MIN_AGREEMENT

    def _sample(self, target: ProbeTarget, reference: Mapping[str, Answer], limit: float) -> float | None:
        """None if an answer does not agree with the reference."""
        apart: list[float] = []
        repeated: list[float] = []
        for prompt, right in reference.items():
            twice = self._answers[prompt].get(target)
            if twice is None:
                continue
            seen = compared(prompt, right, twice.first, limit)
            if not seen.result.is_right:
                return None
            apart += seen.distances
            repeated += self._repeated(target, prompt)
        return max(sample_of(apart), sample_of(repeated))

    def _repeated(self, target: ProbeTarget, prompt: str) -> Sequence[float]:
        """The distances between the two answers of a target to a prompt."""
        twice = self._answers[prompt].get(target)
        if twice is None or twice.again is None:
            return ()
        return compared(prompt, twice.first, twice.again, MAX_TOLERANCE).distances


def _majority(prompt: str, answers: Sequence[Answer], limit: float) -> Answer | None:
    """The answer that is nearest to more than half of the others, if more than half are within the limit."""
    near = _some(answers, MAX_COMPARED)
    candidate = min(_some(answers, MAX_CANDIDATES), key=lambda one: _radius(prompt, one, near), default=None)
    if candidate is None:
        return None
    num = sum(_distance(prompt, candidate, answer) <= limit for answer in answers)
    return candidate if 2 * num > len(answers) else None


def _radius(prompt: str, candidate: Answer, answers: Iterable[Answer]) -> float:
    """The distance within which more than half of the answers are."""
    distances = sorted(_distance(prompt, candidate, answer) for answer in answers)
    return distances[len(distances) // 2]


def _distance(prompt: str, one: Answer, other: Answer) -> float:
    seen = compared(prompt, one, other, MAX_TOLERANCE)
    return max(seen.distances, default=0.0) if seen.result.is_right else inf


def _some(answers: Sequence[Answer], most: int) -> Sequence[Answer]:
    """At most `most` of them, evenly spread."""
    return answers[:: -(-len(answers) // most) or 1]
