"""opencode, over chat completions."""

import json

from tests.clients.coding_agents.environments import Environment
from tests.clients.coding_agents.scripts import DONE, script, tool_call
from tests.clients.coding_agents.workplace import AFTER, BEFORE, Workplace, in_bin, require_said

ENVIRONMENT = Environment(("opencode-ai@1.18.33",))


def edits_a_file(place: Workplace) -> str:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Baton",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": place.key},
        "models": {place.model: {"name": place.model, "limit": {"context": 65536, "output": 4096}}},
    }
    (place.folder / "opencode.json").write_text(json.dumps({"provider": {"baton": provider}}))
    notes = str(place.notes)
    output = place.run(
        *(in_bin(place, "opencode"), "run", "--model", f"baton/{place.model}"),
        typed=script(  # as an argument, it would be quoted once more
            tool_call("read", filePath=notes),
            tool_call("edit", filePath=notes, oldString=BEFORE, newString=AFTER),
        ),
    )
    place.require_edited()
    require_said(output, DONE)
    return output
