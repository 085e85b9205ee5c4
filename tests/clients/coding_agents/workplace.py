"""Where an agent works: the service, the folder with the file that it edits, and how its command is run."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 900
"""Longest time for one command of an agent, in seconds. The model that follows scripts reads 40,000 tokens of
prompt in minutes on two busy cores.
"""
NOTES, BEFORE, AFTER = "notes.txt", "alpha", "beta"
"""The file that each agent edits: its name, its line, and that line as it must be afterwards."""
_SHOWN = 2000
"""Characters at the end of an agent's output that a failure shows."""


class FlowFailed(Exception):
    """What an agent was seen to do wrong."""


class Workplace(NamedTuple):
    url: str
    """Base URL of the service, without `/v1`."""
    key: str
    model: str
    installed: Path
    """The environment of the agent (environments.py)."""
    folder: Path
    """The working directory of the agent. It has the file `NOTES`, and nothing else."""
    home: Path
    """An empty home directory."""

    @property
    def notes(self) -> Path:
        return self.folder / NOTES

    def write_notes(self) -> None:
        self.notes.write_text(f"{BEFORE}\n")

    def require_edited(self) -> None:
        """Raises FlowFailed if the file is not as the agent should have left it."""
        found = self.notes.read_text()
        if found != f"{AFTER}\n":
            raise FlowFailed(f"{NOTES} has {found!r}")

    def run(self, *command: str | Path, environment: Mapping[str, str] | None = None, typed: str = "") -> str:
        """Run a command of the agent, and return what it has printed. `typed`: its standard input.

        The command has no variables of this process but PATH. Raises FlowFailed if it fails, or takes too long.
        """
        try:
            done = subprocess.run(
                [str(part) for part in command],
                cwd=self.folder,
                env=self.environment(environment or {}),
                input=typed,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            said = expired.output.decode(errors="replace") if isinstance(expired.output, bytes) else ""
            raise FlowFailed(f"nothing after {PATIENCE_S} s: {said[-_SHOWN:]}") from expired
        if done.returncode != 0:
            raise FlowFailed(f"exit status {done.returncode}: {done.stdout[-_SHOWN:]}")
        return done.stdout

    def environment(self, added: Mapping[str, str]) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "dumb", **added}


Flow = Callable[[Workplace], str]
"""One thing that an agent must be able to do. Returns what the agent has printed. Raises FlowFailed."""


def require_said(output: str, *wanted: str) -> None:
    """Raises FlowFailed if an output lacks one of these texts."""
    for text in wanted:
        if text not in output:
            raise FlowFailed(f"{text!r} is not in the output: {output[-_SHOWN:]}")


def in_bin(place: Workplace, name: str, parts: Sequence[str] = ("node_modules", ".bin")) -> Path:
    return place.installed.joinpath(*parts, name)
