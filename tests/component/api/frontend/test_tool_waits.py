"""Which answers tell the workers that their conversation waits for tools."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.frontend.generation import Call
from api.frontend.tool_waits import group_of, told
from cluster.messages.retention import TOOL_GROUPS

CALL_FRAME = (
    'data: {"choices":[{"delta":{"tool_calls":[{"id":"c","index":0,"function":{"name":"bash","arguments":""}}]}}]}\n\n'
)
TEXT_FRAME = 'data: {"choices":[{"delta":{"content":"\\"tool_calls\\":[{\\"function\\":{\\"name\\":\\"bash\\""}}]}\n\n'


class Told:
    """A call whose sessions note what they are told."""

    def __init__(self, *, has_tools: bool = True) -> None:
        self.groups: list[int] = []
        sessions = [SimpleNamespace(await_tools=self.groups.append)]
        known = SimpleNamespace(has_tools=has_tools, sessions=sessions)
        known.awaits_tools = lambda group: Call.awaits_tools(self.call, group)
        self.call: Call = cast(Call, known)

    async def answer(self, answer: Any) -> Any:
        async def answering() -> Any:
            return answer

        return await told(answering(), self.call)

    async def frames(self, *frames: str | bytes) -> list[str | bytes]:
        return [frame async for frame in await self.answer(streamed(*frames))]


async def streamed(*frames: str | bytes) -> AsyncGenerator[str | bytes, None]:
    for frame in frames:
        yield frame


def whole(*names: str) -> dict[str, Any]:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in names]
    return {"choices": [{"message": {"content": None, "tool_calls": calls}}]}


async def test_answer_that_calls_tools_is_told_of_with_their_group() -> None:
    one = Told()
    assert await one.answer(whole("read", "bash")) == whole("read", "bash")
    assert one.groups == [group_of(["bash", "read"])]
    assert one.call.sessions == []


async def test_stream_that_calls_tools_is_told_of_when_it_is_complete() -> None:
    one = Told()
    frames = (TEXT_FRAME, CALL_FRAME.encode(), "data: [DONE]\n\n")
    assert await one.frames(*frames) == list(frames)
    assert one.groups == [group_of(["bash"])]


async def test_stream_that_its_client_leaves_is_not_told_of() -> None:
    one = Told()
    stream = await one.answer(streamed(CALL_FRAME, CALL_FRAME))
    await anext(stream)
    await stream.aclose()
    assert one.groups == []
    assert one.call.sessions == []


async def test_text_that_looks_like_a_call_and_answers_without_calls_are_not_told_of() -> None:
    one = Told()
    await one.answer(whole())
    one = Told()
    await one.frames(TEXT_FRAME)
    assert one.groups == []


async def test_answer_to_a_request_without_tools_is_passed_on_as_it_is() -> None:
    one, frames = Told(has_tools=False), streamed(CALL_FRAME)
    assert await one.answer(frames) is frames


async def test_failure_is_raised_and_told_to_nobody() -> None:
    one = Told()

    async def failing() -> Any:
        raise ValueError

    with pytest.raises(ValueError):
        await told(failing(), one.call)
    assert (one.groups, one.call.sessions) == ([], [])


def test_groups_are_few_and_do_not_depend_on_order() -> None:
    assert group_of(["a", "b"]) == group_of(["b", "a", "b"])
    assert all(0 <= group_of([f"tool {i}"]) < TOOL_GROUPS for i in range(200))
