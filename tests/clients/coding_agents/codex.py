"""OpenAI's Codex CLI, over the Responses API. It applies a patch itself that is within a shell command."""

from tests.clients.coding_agents.environments import Environment
from tests.clients.coding_agents.scripts import DONE, script, tool_call
from tests.clients.coding_agents.workplace import AFTER, BEFORE, NOTES, Workplace, in_bin, require_said

ENVIRONMENT = Environment(("@openai/codex@0.169.0",))
_PATCH = f"*** Begin Patch\n*** Update File: {NOTES}\n@@\n-{BEFORE}\n+{AFTER}\n*** End Patch"


def edits_a_file(place: Workplace) -> str:
    provider = f'{{name="Baton",base_url="{place.url}/v1",wire_api="responses",env_key="BATON_API_KEY"}}'
    output = place.run(
        *(in_bin(place, "codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        *("-c", f"model_providers.baton={provider}", "-c", 'model_provider="baton"', "-m", place.model),
        script(
            tool_call("exec_command", cmd=f"cat {NOTES}"),
            tool_call("exec_command", cmd=f"apply_patch <<'EOF'\n{_PATCH}\nEOF"),
        ),
        environment={"BATON_API_KEY": place.key, "CODEX_HOME": str(place.home)},
    )
    place.require_edited()
    require_said(output, "apply patch", DONE)
    return output
