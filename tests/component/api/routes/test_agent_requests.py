"""What coding agents send is answered: each file of `agent_requests/` is the last request of an agent's run (`make
agents`), with its long texts cut, and opencode_title.json is its request for a title. docs/agents.md says which agents
these are.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.component.app_with_fakes import a_client, an_app
from tests.component.fake_engines import FakeEngines

FOLDER = Path(__file__).parent / "agent_requests"
NAMES = sorted(file.stem for file in FOLDER.glob("*.json"))
pytestmark = pytest.mark.filterwarnings(
    "ignore:max_tokens is deprecated:DeprecationWarning"
)  # vLLM reads its own field


class Agents:
    """A service that the agents ask, whose model says what a test has told the engines."""

    def __init__(self, client: httpx.AsyncClient, engines: FakeEngines) -> None:
        self.engines = engines
        self._client = client

    async def answered(self, name: str, **changes: Any) -> httpx.Response:
        """The answer to the request of an agent, with `changes` in its body."""
        request = json.loads((FOLDER / f"{name}.json").read_text())
        body = request["body"] | {"model": "baton-demo"} | changes
        return await self._client.post(request["path"], json=body, headers=request["headers"])

    @property
    def prompt(self) -> str:
        """The last prompt, as the model reads it."""
        return self.engines.tokenizer.decode(self.engines.requests[-1].prompt_token_ids)


@asynccontextmanager
async def agents() -> AsyncIterator[Agents]:
    engines = FakeEngines()
    frontend = await engines.frontend(8192, tool_call_parser="hermes")
    try:
        async with a_client(an_app(frontend)) as client:
            yield Agents(client, engines)
    finally:
        await frontend.close()


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, without the one that ends it."""
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(one) for one in data]


def told(answer: httpx.Response) -> tuple[str, list[dict[str, Any]]]:
    """What an answer says, and its tool calls as `{"name": ..., "arguments": ...}`, in whichever API."""
    text, calls = "", list[dict[str, Any]]()
    for event in [answer.json()] if answer.headers["content-type"] == "application/json" else events_of(answer):
        match event:
            case {"choices": [{"delta": delta}]}:
                text += delta.get("content") or ""
                for call in delta.get("tool_calls") or ():
                    piece = call["function"]
                    if piece.get("name"):
                        calls.append({"name": piece["name"], "arguments": ""})
                    calls[-1]["arguments"] += piece.get("arguments") or ""
            case {"type": "response.output_text.delta", "delta": str(piece)}:
                text += piece
            case {"type": "response.output_item.done", "item": {"type": "function_call"} as item}:
                calls.append({name: item[name] for name in ("namespace", "name", "arguments") if name in item})
            case {"type": "content_block_start", "content_block": {"type": "tool_use", "name": name}}:
                calls.append({"name": name, "arguments": ""})
            case {"type": "content_block_delta", "delta": {"text": piece}}:
                text += piece
            case {"type": "content_block_delta", "delta": {"partial_json": piece}}:
                calls[-1]["arguments"] += piece
            case {"error": error} if error:
                raise AssertionError(error)
    return text, calls


def called(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


async def test_requests_of_agents_are_answered() -> None:
    """With what the model says, and with the tool that the model calls. Each prompt has the last text that was sent."""
    tools = {
        "aider": (None, "SEARCH/REPLACE"),
        "claude_code": ("Edit", "has been updated"),
        "codex": ("exec_command", "Wall time"),
        "llm": ("write_file", "written"),
        "open_webui": ("get_current_timestamp", "Work as follows"),
        "opencode": ("edit", "Edit applied"),
        "opencode_title": (None, "Generate a title"),
        "qwen_code": ("edit", "has been updated"),
    }
    assert sorted(tools) == NAMES
    async with agents() as service:
        for name, (tool, in_prompt) in tools.items():
            service.engines.says("All done.")
            answer = await service.answered(name)
            assert answer.status_code == 200, f"{name}: {answer.text}"
            assert told(answer) == ("All done.", []), name
            assert in_prompt in service.prompt, name
            if tool is not None:
                service.engines.says(called(tool, '{"path": "notes.txt"}'))
                (call,) = told(await service.answered(name))[1]
                assert (call["name"], json.loads(call["arguments"])) == (tool, {"path": "notes.txt"}), name


async def test_functions_in_a_namespace_are_called_by_both_names() -> None:
    async with agents() as service:
        service.engines.says(called("multi_agent_v1.close_agent", '{"target": "a"}'))
        answer = await service.answered("codex")
        (call,) = told(answer)[1]
        assert call == {"namespace": "multi_agent_v1", "name": "close_agent", "arguments": '{"target": "a"}'}
        assert '"name": "multi_agent_v1.close_agent"' in service.prompt
        done = events_of(answer)[-1]["response"]
        assert done["output"][-1]["namespace"] == "multi_agent_v1"

        result = {"type": "function_call_output", "call_id": done["output"][-1]["call_id"], "output": "It is closed."}
        service.engines.says("All done.")
        await service.answered("codex", input=[*done["output"], result])
        assert service.prompt.count("multi_agent_v1.close_agent") == 2  # among the tools, and in the call


async def test_tools_that_the_service_does_not_run_are_left_out_and_named() -> None:
    async with agents() as service:
        service.engines.says("All done.")
        answer = await service.answered("codex")
        assert answer.headers["x-baton-ignored"] == "tools: web_search"
        shown = [tool["type"] for tool in events_of(answer)[0]["response"]["tools"]]
        assert "namespace" in shown and "web_search" not in shown
        assert "web_search" not in service.prompt

        for changes, param in (
            ({"tool_choice": "required"}, "tools[8].type"),
            ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
            ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools[0].type"),
            ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
            (
                {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "namespace"}]}]},
                "tools[0].tools[0].type",
            ),
            ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
            ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
            ({"tools": [{"type": "function", "name": "f", "description": 7}]}, "tools[0].description"),
            ({"client_metadata": "x"}, "client_metadata"),
        ):
            refused = await service.answered("codex", **changes)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), changes
