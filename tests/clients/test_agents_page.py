"""The page of coding agents tells the versions that are pinned."""

import re

import pytest

from cluster.repository import REPO_ROOT
from tests.clients.coding_agents.__main__ import AGENTS

PAGE = (REPO_ROOT / "docs" / "agents.md").read_text()
TITLES = {
    "codex": "Codex CLI",
    "claude-code": "Claude Code",
    "opencode": "opencode",
    "qwen-code": "Qwen Code",
    "aider": "aider",
    "llm": "llm",
    "open-webui": "Open WebUI",
}
"""By the names of `make agents ONLY=`."""
BESIDE = {"torch", "playwright"}
"""Packages that our flow needs and a user does not install by name."""


def pinned(name: str) -> str:
    """What the command that installs an agent names: the package with its version."""
    (pin,) = [pin for pin in AGENTS[name].environment.packages if re.split("==|@", pin)[0] not in BESIDE]
    return pin


def test_table_has_each_agent_in_its_pinned_version() -> None:
    rows = re.findall(r"^\| \[([^\]]+)\]\(#[\w-]+\) \| (\S+) \|", PAGE, re.MULTILINE)
    assert dict(rows) == {TITLES[name]: re.split("==|@", pinned(name))[-1] for name in AGENTS}
    assert len(rows) == len(AGENTS)


def test_commands_install_what_is_pinned() -> None:
    commands = re.findall(r"^\$ (?:npm install --global|pip install) (\S+)$", PAGE, re.MULTILINE)
    assert sorted(commands) == sorted(pinned(name) for name in AGENTS)


@pytest.mark.parametrize("name", AGENTS)
def test_every_package_of_an_agent_is_pinned(name: str) -> None:
    packages = AGENTS[name].environment.packages
    assert all(re.fullmatch(r"@?[\w./-]+(==|@)\d[\w.+]*", package) for package in packages), packages
