from types import SimpleNamespace

from cluster.engine_core.prompt_steps import MAX_STEPS, MOST_FORGOTTEN, PromptStep, PromptStepLog, steps_in
from cluster.engine_core.step_samples import Step


def a_step(guesses: dict[str, list[int]] | None = None, **num_tokens: int) -> Step:
    """The tokens of each request."""
    return SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        num_scheduled_tokens=num_tokens,
        total_num_scheduled_tokens=sum(num_tokens.values()),
        scheduled_spec_decode_tokens=guesses or {},
    )


class Steps:
    """Steps that follow each other, each of a second."""

    def __init__(self) -> None:
        self.prompts, self.now, self.begun = PromptStepLog(), 0.0, set[str]()

    def run(self, step: Step) -> tuple[float, float]:
        times = (self.now, self.now + 1.0)
        self.prompts.stepped(self.prompts.computing(step, self.begun.__contains__), step, times)
        self.now += 1.0
        return times

    def first_output(self, name: str, step: Step) -> list[PromptStep]:
        times = self.run(step)
        self.begun.add(name)
        return steps_in(self.prompts.first_output(name, step, times))


def test_each_step_of_a_prompt_is_told_with_its_first_output() -> None:
    steps = Steps()
    steps.run(a_step(a=100, b=1))
    steps.run(a_step(b=1))
    assert steps.first_output("a", a_step(a=20, b=1, c=7)) == [
        PromptStep(0.0, 1.0, 100, 2, 101),
        PromptStep(2.0, 3.0, 20, 3, 28),
    ]


def test_step_that_computes_only_the_last_token_is_told_too() -> None:
    steps = Steps()
    assert steps.first_output("pulled", a_step(pulled=1, b=1)) == [PromptStep(0.0, 1.0, 1, 2, 2)]


def test_prompt_that_is_computed_anew_after_its_first_output_is_not_kept() -> None:
    steps = Steps()
    steps.first_output("a", a_step(a=10))
    steps.run(a_step(a=10))
    assert steps.prompts._steps == {}


def test_guessed_tokens_are_no_prompt() -> None:
    assert PromptStepLog().computing(a_step({"a": [1, 2]}, a=3), lambda name: False) == []


def test_steps_of_a_long_prompt_are_bounded_and_lose_no_token() -> None:
    steps = Steps()
    for _ in range(99):
        steps.run(a_step(a=10))
    told = steps.first_output("a", a_step(a=10))
    assert len(told) == MAX_STEPS
    assert sum(step.num_tokens for step in told) == 1000
    assert (told[-1].num_steps, told[-1].ended_at) == (100 - MAX_STEPS + 1, 100.0)


def test_prompts_that_were_aborted_are_dropped() -> None:
    steps = Steps()
    for number in range(MOST_FORGOTTEN + 2):
        steps.run(a_step(None, **{f"r{number}": 10}))
    steps.prompts.keep({"r3"})
    assert list(steps.prompts._steps) == ["r3"]


def test_output_without_steps_has_none() -> None:
    assert steps_in(None) == steps_in({"traceparent": "00"}) == []
