"""aider, over chat completions. It offers no tools: the model writes what to search and replace as text."""

from tests.clients.coding_agents.environments import Environment
from tests.clients.coding_agents.scripts import script
from tests.clients.coding_agents.workplace import AFTER, BEFORE, NOTES, Workplace, in_bin, require_said

ENVIRONMENT = Environment(("aider-chat==0.86.2",), is_python=True)
_EDIT = f"{NOTES}\n```\n<<<<<<< SEARCH\n{BEFORE}\n=======\n{AFTER}\n>>>>>>> REPLACE\n```\n"


def edits_a_file(place: Workplace) -> str:
    output = place.run(
        *(in_bin(place, "aider", ("bin",)), "--model", f"openai/{place.model}", "--edit-format", "diff", "--no-git"),
        *("--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable", "--no-pretty"),
        *("--message", script(_EDIT), NOTES),
        environment={"OPENAI_API_BASE": f"{place.url}/v1", "OPENAI_API_KEY": place.key},
    )
    place.require_edited()
    require_said(output, f"Applied edit to {NOTES}")
    return output
