"""Runs the driver of a client against a service, and reads what its flows have found."""

import json
import os
import subprocess
from dataclasses import dataclass

from cluster.repository import REPO_ROOT
from tests.clients.catalogue import Client
from tests.clients.environments import command_of

DRIVER_TIMEOUT_S = 600.0
"""Of all flows of a client. Less would end drivers on a busy machine; more lets one that hangs hold the others up."""
WRONG_KEY = "sk-baton-00000000-" + "0" * 46
"""Has the form of a key, so that a service that asks for no key looks at it, too."""
DETAIL_CHARS = 200
"""Of a failure, in the table. More breaks its lines; less hides what was wrong."""


@dataclass(frozen=True)
class Endpoint:
    """A service that clients are pointed at."""

    url: str
    """Without `/v1`."""
    key: str
    model: str


@dataclass(frozen=True)
class Outcome:
    """Of one flow."""

    flow: str
    ok: bool
    detail: str
    """What was seen, or what was wrong."""


def outcomes(client: Client, endpoint: Endpoint) -> list[Outcome]:
    """One for each declared flow: a flow that its driver does not tell has failed. Raises FileNotFoundError if the
    client is not installed.
    """
    told, noise = _told(client, endpoint)
    seen = {outcome.flow: outcome for outcome in told}
    unheard = [name for name in client.flows if name not in seen]
    unknown = [name for name in seen if name not in client.flows]
    return [
        *told,
        *(Outcome(name, ok=False, detail=f"the driver ended without it: {noise}") for name in unheard),
        *(Outcome(name, ok=False, detail="the driver tells a flow that it does not declare") for name in unknown),
    ]


def table(client: Client, results: list[Outcome]) -> str:
    """As lines of text, failures with what was wrong."""
    passed = sum(outcome.ok for outcome in results)
    versions = ", ".join(f"{package} {version}" for package, version in client.versions.items())
    lines = [f"{client.name}: {passed} of {len(results)} flows pass ({versions})"]
    for outcome in results:
        detail = " ".join(outcome.detail.split())[: DETAIL_CHARS if not outcome.ok else 60]
        lines.append(f"  {'pass' if outcome.ok else 'FAIL'}  {outcome.flow:<40} {detail}")
    return "\n".join(lines)


def _told(client: Client, endpoint: Endpoint) -> tuple[list[Outcome], str]:
    """And the last line of what it has said beside."""
    try:
        done = subprocess.run(
            command_of(client),
            cwd=REPO_ROOT,
            env=_environment(endpoint),
            capture_output=True,
            text=True,
            timeout=DRIVER_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""
        return _read(output.decode() if isinstance(output, bytes) else output), f"ended after {DRIVER_TIMEOUT_S:.0f} s"
    last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    return _read(done.stdout), last[0]


def _read(output: str) -> list[Outcome]:
    """Clients print lines of their own now and then."""
    lines = (line for line in output.splitlines() if line.startswith('{"flow"'))
    return [Outcome(told["flow"], told["ok"], told["detail"]) for told in map(json.loads, lines)]


def _environment(endpoint: Endpoint) -> dict[str, str]:
    """Of the driver. What the caller's environment says of OpenAI's or Anthropic's services must not reach it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ANTHROPIC_"))}
    return kept | {
        "BATON_URL": endpoint.url,
        "BATON_KEY": endpoint.key,
        "BATON_MODEL": endpoint.model,
        "BATON_WRONG_KEY": WRONG_KEY,
        "PYTHONPATH": str(REPO_ROOT),
        # Nothing of theirs may call home
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGSMITH_TRACING": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
