"""Which answers tell the workers that their conversation waits for tools."""

from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import pytest_asyncio

from api.frontend.generation import Call
from api.frontend.tool_waits import group_of, told
from api.wire.sse import DONE
from cluster.messages.retention import TOOL_GROUPS
from tests.component.app_with_fakes import CHAT, a_client, an_app
from tests.component.fake_engines import FakeEngines

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
    frames = (TEXT_FRAME, CALL_FRAME.encode(), DONE)
    assert await one.frames(*frames) == list(frames)
    assert one.groups == [group_of(["bash"])]


async def test_stream_that_is_closed_at_its_last_frame_is_told_of() -> None:
    one = Told()
    stream = await one.answer(streamed(CALL_FRAME, DONE))
    assert [await anext(stream), await anext(stream)] == [CALL_FRAME, DONE]
    await stream.aclose()
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


WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
REQUESTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASKED, "tools": [{"type": "function", "function": WEATHER}]},
    "/v1/responses": {"input": ASKED, "store": False, "tools": [{"type": "function", "strict": False, **WEATHER}]},
    "/v1/messages": {
        "messages": ASKED,
        "max_tokens": 64,
        "tools": [{"name": "weather", "input_schema": WEATHER["parameters"]}],
    },
}
CALLED = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[tuple[httpx.AsyncClient, FakeEngines]]:
    engines = FakeEngines()
    frontend = await engines.frontend(512, tool_call_parser="hermes")
    async with a_client(an_app(frontend)) as client:
        yield client, engines
    await frontend.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning")  # vLLM reads its own field
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", REQUESTS)
async def test_worker_is_told_of_calls_in_every_api(
    served: tuple[httpx.AsyncClient, FakeEngines], path: str, *, stream: bool
) -> None:
    client, engines = served
    body = {"model": "baton-demo", "stream": stream, **REQUESTS[path]}
    for says, groups in ((CALLED, [group_of(["weather"])]), ("It is sunny.", [])):
        engines.reset()
        engines.says(says)
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert engines.groups == groups
