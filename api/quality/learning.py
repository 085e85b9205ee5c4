"""Learner: makes a reference of the answers on which most workers agree. Pure.

Each target answers each prompt once. The answer of a prompt becomes the reference if more than half of the workers
agree with it on all paths that they were asked on. Where there is no such answer, the prompt has no reference.
"""

from collections.abc import Collection, Mapping

from api.quality.comparison import Tolerances, compared
from api.quality.schedule import ProbeTarget
from cluster.messages.ids import WorkerId
from cluster.messages.quality import Answer
from kvtransfer.verify import MAX_TOLERANCE


class Learner:
    def __init__(self, prompts: Collection[str]) -> None:
        self._answers: dict[str, dict[ProbeTarget, Answer]] = {prompt: {} for prompt in prompts}

    def note(self, target: ProbeTarget, prompt: str, answer: Answer) -> None:
        self._answers[prompt][target] = answer

    def keep(self, targets: Collection[ProbeTarget]) -> None:
        """Forget the answers of workers that are gone."""
        for of_prompt in self._answers.values():
            for gone in of_prompt.keys() - set(targets):
                del of_prompt[gone]

    def _has_answered(self, target: ProbeTarget) -> bool:
        return all(target in of_prompt for of_prompt in self._answers.values())

    def learned(self, targets: Collection[ProbeTarget], *, waits_for_all: bool = True) -> dict[str, Answer] | None:
        """The answers on which most workers agree. None until every target has answered, or half of them if it does not
        wait for all. Empty if the workers do not agree on any prompt.
        """
        num = sum(map(self._has_answered, targets))
        if not num or (num < len(targets) if waits_for_all else 2 * num < len(targets)):
            return None
        found = {prompt: _majority(prompt, of_prompt) for prompt, of_prompt in self._answers.items()}
        return {prompt: answer for prompt, answer in found.items() if answer is not None}

    def tolerances(self, reference: Mapping[str, Answer]) -> Tolerances:
        """What rounding is, by the distances of the answers that agree with the reference."""
        tolerances = Tolerances()
        for prompt, right in reference.items():
            for target, answer in self._answers[prompt].items():
                if answer is not right:
                    tolerances.learn(target.path, compared(prompt, right, answer, MAX_TOLERANCE))
        return tolerances


def _majority(prompt: str, answers: Mapping[ProbeTarget, Answer]) -> Answer | None:
    """The answer with which more than half of the workers agree. The candidate is found in one pass (Boyer and Moore,
    MJRTY), and then all are compared with it: to compare each with each would take minutes in a large cluster.
    """
    candidate, lead = None, 0
    for answer in answers.values():
        if candidate is None or not lead:
            candidate, lead = answer, 1
        else:
            lead += 1 if _agree(prompt, candidate, answer) else -1
    if candidate is None:
        return None
    workers = {target.worker for target in answers}
    return candidate if 2 * len(workers - _disagreeing(prompt, candidate, answers)) > len(workers) else None


def _disagreeing(prompt: str, candidate: Answer, answers: Mapping[ProbeTarget, Answer]) -> set[WorkerId]:
    return {target.worker for target, answer in answers.items() if not _agree(prompt, candidate, answer)}


def _agree(prompt: str, one: Answer, other: Answer) -> bool:
    return compared(prompt, one, other, MAX_TOLERANCE).result.is_right
