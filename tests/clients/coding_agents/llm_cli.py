"""Simon Willison's `llm`, over chat completions: a prompt with a Python function as its tool, and a chat."""

import json

from tests.clients.coding_agents.environments import Environment
from tests.clients.coding_agents.scripts import DONE, script, tool_call
from tests.clients.coding_agents.workplace import AFTER, BEFORE, NOTES, Workplace, in_bin, require_said

ENVIRONMENT = Environment(("llm==0.36",), is_python=True)
_FUNCTIONS = '''
import pathlib

def read_file(path: str) -> str:
    """The text of a file."""
    return pathlib.Path(path).read_text()

def write_file(path: str, text: str) -> str:
    """Write a text to a file."""
    pathlib.Path(path).write_text(text)
    return "written"
'''


def edits_a_file(place: Workplace) -> str:
    output = _run(
        place,
        *("-m", "baton", "--functions", _FUNCTIONS, "--tools-debug"),
        script(tool_call("read_file", path=NOTES), tool_call("write_file", path=NOTES, text=f"{AFTER}\n")),
    )
    place.require_edited()
    require_said(output, BEFORE, DONE)
    return output


def chats(place: Workplace) -> str:
    """Two turns of one conversation. The second turn of the model is the second step."""
    output = _run(place, "chat", "-m", "baton", typed=f"{script('I am here.')}\nGo on.\nexit\n")
    require_said(output, "I am here.", DONE)
    return output


def _run(place: Workplace, *arguments: str, typed: str = "") -> str:
    model = {
        "model_id": "baton",
        "model_name": place.model,
        "api_base": f"{place.url}/v1",
        "api_key_name": "baton",
        "supports_tools": True,
    }
    (place.home / "extra-openai-models.yaml").write_text(json.dumps([model]))
    (place.home / "keys.json").write_text(json.dumps({"baton": place.key}))
    return place.run(
        in_bin(place, "llm", ("bin",)),
        *arguments,
        environment={"LLM_USER_PATH": str(place.home)},
        typed=typed,
    )
