"""Run coding agents on a service with the model `baton-script`. Prints one line of JSON for each flow:
`{"flow": ..., "ok": ..., "detail": ...}`. `make agents` calls it.
"""

import argparse
import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from cluster.repository import REPO_ROOT
from tests.clients.coding_agents import aider, claude_code, codex, llm_cli, open_webui, opencode, qwen_code
from tests.clients.coding_agents.environments import Environment
from tests.clients.coding_agents.workplace import Flow, FlowFailed, Workplace


class Driven(NamedTuple):
    environment: Environment
    flows: Mapping[str, Flow]


AGENTS = {
    "codex": Driven(codex.ENVIRONMENT, {"edits a file": codex.edits_a_file}),
    "claude-code": Driven(claude_code.ENVIRONMENT, {"edits a file": claude_code.edits_a_file}),
    "opencode": Driven(opencode.ENVIRONMENT, {"edits a file": opencode.edits_a_file}),
    "qwen-code": Driven(qwen_code.ENVIRONMENT, {"edits a file": qwen_code.edits_a_file}),
    "aider": Driven(aider.ENVIRONMENT, {"edits a file": aider.edits_a_file}),
    "llm": Driven(llm_cli.ENVIRONMENT, {"edits a file": llm_cli.edits_a_file, "chats": llm_cli.chats}),
    "open-webui": Driven(open_webui.ENVIRONMENT, {"chats in a browser": open_webui.chats_in_a_browser}),
}


def main(arguments: Sequence[str]) -> int:
    asked = _parsed(arguments)
    key = asked.key_file.read_text().strip() if asked.key_file.is_file() else "none"
    model = asked.model or _first_model(asked.url, key)
    if asked.transcripts is not None:
        asked.transcripts.mkdir(parents=True, exist_ok=True)
    all_ok = True
    for name in asked.only or AGENTS:
        for told in _flows_of(name, asked.url, key, model, asked.transcripts):
            print(json.dumps(told), flush=True)
            all_ok &= bool(told["ok"])
    return 0 if all_ok else 1


def _flows_of(name: str, url: str, key: str, model: str, transcripts: Path | None) -> Iterator[dict[str, object]]:
    driven = AGENTS[name]
    installed = driven.environment.made(name)
    for title, flow in driven.flows.items():
        began = time.monotonic()
        with TemporaryDirectory(prefix="baton-agent-", ignore_cleanup_errors=True) as run:
            place = Workplace(url, key, model, installed, folder=Path(run) / "work", home=Path(run) / "home")
            place.folder.mkdir()
            place.home.mkdir()
            place.write_notes()
            failure, output = None, ""
            try:
                output = flow(place)
            except FlowFailed as failed:
                failure = output = str(failed)
        if transcripts is not None:
            (transcripts / f"{name}, {title}.txt").write_text(output)
        took = f"{time.monotonic() - began:.1f} s"
        yield {"flow": f"{name}: {title}", "ok": failure is None, "detail": failure or took}


def _first_model(url: str, key: str) -> str:
    request = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except OSError as error:
        sys.exit(f"no model list from {url}: {error} (make script-model serve CONF=conf/agents.yaml starts a service)")


def _agents(names: str) -> list[str]:
    wanted = names.split(",")
    if unknown := set(wanted) - AGENTS.keys():
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))} (known: {', '.join(AGENTS)})")
    return wanted


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.coding_agents", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="base URL of the service, without /v1")
    parser.add_argument("--key-file", type=Path, default=REPO_ROOT / ".baton/data/api-key", help="file with an API key")
    parser.add_argument("--model", help="the first model of the service by default")
    parser.add_argument("--only", type=_agents, help="these agents, separated by commas")
    parser.add_argument("--transcripts", type=Path, help="folder for what the agents print")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
