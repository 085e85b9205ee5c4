"""The steps that computed a prompt, until its first output, for the timeline of its request. Pure.

The engine's core alone knows them. They leave with the first output of the request, in the field of vLLM's outputs that
is made for traces. A step that only decodes costs one comparison of two numbers.
"""

from collections.abc import Callable, Collection, Mapping

import msgspec

from cluster.engine_core.step_samples import Step

STEPS_HEADER = "baton-steps"
"""Name of the steps among the trace headers of an output."""
MAX_STEPS = 24
"""Steps of one prompt that are kept apart. The last one stands for all later ones. More makes first outputs and
receipts larger; fewer shows less of a long prompt.
"""
MOST_FORGOTTEN = 1024
"""Prompts that were aborted, in number, before they are dropped here. More takes memory; fewer looks more often."""


class PromptStep(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """One step, or the sum of several, with what it computed of one prompt. Times are seconds of `time.monotonic`."""

    began_at: float
    ended_at: float
    num_tokens: int
    """Tokens of the prompt."""
    num_requests: int
    """Requests of the step, this one included: the largest number, if there are several steps."""
    num_batch_tokens: int
    """Tokens of all requests of the step."""
    num_steps: int = 1


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[PromptStep]).decode


class PromptStepLog:
    def __init__(self) -> None:
        self._steps: dict[str, list[PromptStep]] = {}

    def computing(self, step: Step, is_begun: Callable[[str], bool]) -> list[str]:
        """The prompts that a step computes, several tokens of each. `is_begun`: whether a request has had its first
        output.
        """
        num_scheduled = step.num_scheduled_tokens
        if step.total_num_scheduled_tokens == len(num_scheduled):
            return []
        guesses = step.scheduled_spec_decode_tokens
        return [n for n, num in num_scheduled.items() if num > 1 and n not in guesses and not is_begun(n)]

    def stepped(self, names: list[str], step: Step, times: tuple[float, float]) -> None:
        """A step is done that computed these prompts. `times`: when it began and ended, in seconds."""
        for name in names:
            self._add(name, step, times)

    def first_output(self, name: str, step: Step, times: tuple[float, float]) -> Mapping[str, str]:
        """The steps of a request, whose first output is that of the step, as trace headers of the output."""
        known = self._steps.get(name)
        if known is None or known[-1].ended_at != times[1]:
            self._add(name, step, times)
        return {STEPS_HEADER: str(_encode(self._steps.pop(name)), "ascii")}

    def keep(self, names: Collection[str]) -> None:
        """Drop prompts that are not among these, if there are too many."""
        if len(self._steps) > len(names) + MOST_FORGOTTEN:
            self._steps = {name: steps for name, steps in self._steps.items() if name in names}

    def _add(self, name: str, step: Step, times: tuple[float, float]) -> None:
        num_tokens, num_requests = step.num_scheduled_tokens.get(name, 0), len(step.num_scheduled_tokens)
        new = PromptStep(*times, num_tokens, num_requests, step.total_num_scheduled_tokens)
        steps = self._steps.setdefault(name, [])
        if len(steps) < MAX_STEPS:
            steps.append(new)
            return
        last = steps[-1]
        last.ended_at = new.ended_at
        last.num_tokens += new.num_tokens
        last.num_requests = max(last.num_requests, new.num_requests)
        last.num_batch_tokens += new.num_batch_tokens
        last.num_steps += 1


def steps_in(headers: Mapping[str, str] | None) -> list[PromptStep]:
    """The steps in the trace headers of an output. Empty if there are none."""
    given = (headers or {}).get(STEPS_HEADER)
    return _decode(given) if given else []
