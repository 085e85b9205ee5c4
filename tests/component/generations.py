"""What fake engines generate, so that every kind of answer and of event is made of it."""

from collections.abc import Callable
from typing import Any

from cluster.errors import Overloaded, WorkerUnreachable
from cluster.messages.generation import FinishReason
from tests.component.fake_engines import END_OF_TURN, FakeEngines, with_logprobs

WEATHER: Any = {"name": "weather", "description": "Of a city.", "parameters": {"type": "object", "properties": {}}}
THOUGHT = "Here is my thought process: They ask for the weather. Here is my response: "
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def says(text: str, *end: Any) -> Callable[[FakeEngines], None]:
    return lambda engines: engines.says(text, *end)


def tells_logprobs(engines: FakeEngines) -> None:
    engines.says("Paris", FinishReason.LENGTH)
    engines.deltas = [with_logprobs(delta, END_OF_TURN) for delta in engines.deltas]


def fails_midway(engines: FakeEngines) -> None:
    engines.deltas, engines.error = engines.deltas[:2], WorkerUnreachable("worker d0 is gone", "d0")


def refuses(engines: FakeEngines) -> None:
    engines.deltas, engines.error = [], Overloaded("no worker can be reached", 1.0)


Generation = Callable[[FakeEngines], None]

GENERATIONS: tuple[Generation, ...] = (
    says("It is nice."),
    says("It is", FinishReason.LENGTH),
    says("It is nice.", FinishReason.STOP, "nice"),
    tells_logprobs,
    fails_midway,
    refuses,
)
TOOL_CALLS: tuple[Generation, ...] = (says(CALL), says("Let me look.\n" + CALL + "\n" + CALL))
REASONING: tuple[Generation, ...] = (says(THOUGHT + "It is nice."),)
