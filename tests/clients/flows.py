"""What drivers in Python share: the flows that they declare, the model's questions, and how results are told.

A driver runs in the environment of its client, so this module imports only the standard library. flows.mjs is the same
for drivers in JavaScript.
"""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

URL = os.environ["BATON_URL"]
"""Without `/v1`."""
MODEL = os.environ["BATON_MODEL"]
KEY = os.environ["BATON_KEY"]
WRONG_KEY = os.environ["BATON_WRONG_KEY"]
"""Has the form of a key, and belongs to nobody."""
TIMEOUT_S = 120.0
"""Of one request. Less would fail on a machine that is busy with other tests; more lets a driver hang for longer."""

CAPITAL, ITS_ANSWER = "What is the capital of France?", "Paris"
MY_NAME, WHO_AM_I, THE_NAME = "My name is Anna.", "What is my name?", "Anna"
WEATHER, CITY = "What is the weather in Paris?", "Paris"
TOOL, TOOL_DESCRIPTION = "get_weather", "Get the current weather of a city."
SKY = "sunny"
"""What the tool says."""
LONG = "Tell me a story."
"""Has an answer of hundreds of tokens."""
READ_PARTS = 3
"""Parts of a long answer that are read before it is cancelled."""
NOBODY = "no-such-model"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
CITIES = ("Rome", "Paris")
"""What a structured answer may name."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": list(CITIES)}},
    "required": ["city"],
    "additionalProperties": False,
}

Flow = Callable[[], Any]
_flows: dict[str, Flow] = {}


def flow(name: str) -> Callable[[Flow], Flow]:
    """Declare a flow: a function, or a coroutine function, that raises if something is wrong, and may return what was
    seen.
    """

    def declare(function: Flow) -> Flow:
        _flows[name] = function
        return function

    return declare


def run() -> None:
    """Run the declared flows one after the other, and tell each in a line."""
    for name, function in _flows.items():
        try:
            seen = function()
            if inspect.isawaitable(seen):
                seen = asyncio.run(_result(seen))
            _tell(name, True, seen)
        except Exception as error:
            _tell(name, False, f"{type(error).__name__}: {error}{_place(error)}")


def raised(error: type[Exception], call: Callable[[], Any]) -> Any:
    """The error that a call raises, which must be of exactly this type: a client's users name it. Raises
    AssertionError.
    """
    try:
        answer = call()
    except Exception as seen:
        assert type(seen) is error, f"raised {type(seen).__name__} instead of {error.__name__}: {seen}"
        return seen
    raise AssertionError(f"answered instead of raising {error.__name__}: {answer}")


def require(text: object, part: str) -> str:
    """The text, which must contain the part. Raises AssertionError."""
    assert isinstance(text, str) and part in text, f"{part!r} is not in {text!r}"
    return text


async def _result(seen: Any) -> Any:
    return await seen


def _place(error: BaseException) -> str:
    lines = (
        [frame.lineno for frame in inspect.getinnerframes(error.__traceback__) if "driver.py" in frame.filename]
        if error.__traceback__
        else []
    )
    return f" (line {lines[-1]})" if lines else ""


def _tell(name: str, ok: bool, detail: object) -> None:
    line = {"flow": name, "ok": ok, "detail": "" if detail is None else str(detail)}
    print(json.dumps(line), file=sys.stdout, flush=True)
