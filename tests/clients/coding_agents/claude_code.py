"""Anthropic's Claude Code, over the Messages API."""

from tests.clients.coding_agents.environments import Environment
from tests.clients.coding_agents.scripts import DONE, script, tool_call
from tests.clients.coding_agents.workplace import AFTER, BEFORE, Workplace, in_bin, require_said

ENVIRONMENT = Environment(("@anthropic-ai/claude-code@2.1.197",))


def edits_a_file(place: Workplace) -> str:
    notes = str(place.notes)
    output = place.run(
        *(in_bin(place, "claude"), "--model", place.model, "--allowedTools", "Read,Edit", "-p"),
        script(
            tool_call("Read", file_path=notes),
            tool_call("Edit", file_path=notes, old_string=BEFORE, new_string=AFTER),
        ),
        environment={
            "ANTHROPIC_BASE_URL": place.url,
            "ANTHROPIC_API_KEY": place.key,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    )
    place.require_edited()
    require_said(output, DONE)
    return output
