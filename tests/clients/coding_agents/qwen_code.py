"""Qwen Code, over chat completions."""

from tests.clients.coding_agents.environments import Environment
from tests.clients.coding_agents.scripts import DONE, script, tool_call
from tests.clients.coding_agents.workplace import AFTER, BEFORE, Workplace, in_bin, require_said

ENVIRONMENT = Environment(("@qwen-code/qwen-code@0.15.10",))


def edits_a_file(place: Workplace) -> str:
    notes = str(place.notes)
    output = place.run(
        *(in_bin(place, "qwen"), "--auth-type", "openai", "--model", place.model, "--approval-mode", "yolo", "-p"),
        script(
            tool_call("read_file", file_path=notes),
            tool_call("edit", file_path=notes, old_string=BEFORE, new_string=AFTER),
        ),
        environment={"OPENAI_BASE_URL": f"{place.url}/v1", "OPENAI_API_KEY": place.key},
    )
    place.require_edited()
    require_said(output, DONE)
    return output
