"""Nodes of a cluster on one machine: each has a network address, a process tree, a /tmp/ray and a /dev/shm of its own,
and shares the machine's files. A node that is killed loses all its processes at once, as one that is switched off does.

Linux namespaces make them, which takes root, util-linux (unshare, nsenter) and iproute2 (ip).
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from cluster.repository import REPO_ROOT
from tests.real_cluster.service import wait_for

BRIDGE = "baton-drill"
BRIDGE_MAC = "02:00:0a:57:71:01"
SUBNET = "10.87.113"
OWN = ("/tmp/ray", "/dev/shm")
READY_S = 10.0
INIT = "trap : TERM; mount -t proc proc /proc; sleep infinity & wait"
"""The first process of a node: a shell, which reaps what others leave behind."""


class Network:
    """A bridge that all nodes and the machine itself are connected to."""

    def __init__(self) -> None:
        require_namespaces()
        _remove(BRIDGE)  # what a drill that was killed has left
        # With an address of its own: else Linux gives the bridge another one when nodes come and go, and for a minute
        # the nodes send to the old one what is for this machine
        _ip("link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge")
        _ip("addr", "add", f"{SUBNET}.1/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")

    def close(self) -> None:
        _remove(BRIDGE)


class Node:
    def __init__(self, number: int) -> None:
        """`number` makes the last byte of its address."""
        self.number = number
        self.address = f"{SUBNET}.{number}"
        self._started: list[psutil.Popen] = []
        self.link = f"{BRIDGE[:8]}-{number}"
        """The machine's end of the node's network cable."""
        for folder in OWN:
            Path(folder).mkdir(exist_ok=True)
        self._holder = psutil.Popen(
            ["unshare", "--net", "--pid", "--mount", "--uts", "--fork", "--kill-child", "sh", "-c", INIT]
        )
        wait_for(lambda: bool(self._holder.children()), READY_S, interval_s=0.01)
        (self._first,) = self._holder.children()
        self._namespace = _process_namespace(self._first.pid)
        self._connect()
        for folder in OWN:
            self.command("mount", "-t", "tmpfs", "tmpfs", folder)

    def start(self, command: list[str], environment: Mapping[str, str], log: IO[bytes]) -> psutil.Popen:
        process = psutil.Popen(
            [*self.enter, *command],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._started.append(process)
        return process

    def command(self, *command: str) -> None:
        subprocess.run([*self.enter, *command], check=True, capture_output=True)

    def processes(self) -> list[psutil.Process]:
        """All that run on it."""
        return [process for process in psutil.process_iter() if _process_namespace(process.pid) == self._namespace]

    def kill(self) -> None:
        """All its processes, at once."""
        with suppress(psutil.NoSuchProcess):
            self._holder.kill()
        self._holder.wait(READY_S)
        psutil.wait_procs([self._first, *self._started], READY_S)
        _remove(self.link)

    @property
    def enter(self) -> list[str]:
        """The command that runs the command after it on the node."""
        return ["nsenter", "-t", str(self._first.pid), "--net", "--pid", "--mount", "--uts", f"--wd={REPO_ROOT}"]

    def _connect(self) -> None:
        inside = "eth0"
        _remove(self.link)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", inside, "netns", str(self._first.pid))
        _ip("link", "set", self.link, "master", BRIDGE, "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{self.address}/24", "dev", inside),
            ("link", "set", inside, "up"),
        ):
            self.command("ip", *command)


@contextmanager
def spliced(node: Node) -> Iterator[tuple[str, str]]:
    """Take a node off the bridge, for as long as something else passes its frames on. Gives two network interfaces of
    the machine: what the node sends comes out of the first, and what it is sent comes out of the second.
    """
    inner, outer = f"{node.link}-in", f"{node.link}-out"
    _remove(inner)  # what a drill that was killed has left
    _ip("link", "add", inner, "type", "veth", "peer", "name", outer)
    _ip("link", "set", inner, "up")
    _ip("link", "set", node.link, "nomaster")
    _ip("link", "set", outer, "master", BRIDGE, "up")
    try:
        yield node.link, inner
    finally:
        _remove(inner)
        with suppress(subprocess.CalledProcessError):  # the node may have been switched off
            _ip("link", "set", node.link, "master", BRIDGE)


def require_namespaces() -> None:
    for program in ("ip", "unshare", "nsenter"):
        assert shutil.which(program), f"nodes on one machine need {program}: apt-get install iproute2 util-linux"
    allowed = subprocess.run(["unshare", "--net", "--pid", "--mount", "--uts", "--fork", "true"], capture_output=True)
    assert allowed.returncode == 0, f"nodes on one machine need root: {allowed.stderr.decode()}"


def _process_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _remove(link: str) -> None:
    subprocess.run(["ip", "link", "del", link], capture_output=True)
