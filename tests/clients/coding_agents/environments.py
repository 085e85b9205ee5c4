"""Environments of agents, one folder for each, with pinned versions. They are made once and kept."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from cluster.repository import REPO_ROOT

FOLDER = REPO_ROOT / ".baton" / "clients" / "agents"
_STAMP = ".installed"


class Environment(NamedTuple):
    """Packages of one registry, each pinned. What they depend on, they pin themselves."""

    packages: tuple[str, ...]
    is_python: bool = False

    def made(self, name: str) -> Path:
        """The folder of the environment, which is made if it is not there. Raises CalledProcessError."""
        folder = FOLDER / name
        stamp, wanted = folder / _STAMP, "\n".join(self.packages)
        if stamp.is_file() and stamp.read_text() == wanted:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"Installing {' '.join(self.packages)} into {folder}", file=sys.stderr)
        if self.is_python:
            self._install_from_pypi(folder)
        else:
            _run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, *self.packages)
        stamp.write_text(wanted)
        return folder

    def _install_from_pypi(self, folder: Path) -> None:
        _run(sys.executable, "-m", "venv", folder)
        for package in self.packages:
            pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile", package)
            try:
                _run(*pip)
            except subprocess.CalledProcessError:
                if not package.startswith("torch=="):
                    raise
                _run(*pip, "--index-url", "https://download.pytorch.org/whl/cpu")


def _run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)
