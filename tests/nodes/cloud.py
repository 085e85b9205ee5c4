"""A cloud on one machine, for Ray's autoscaler (provider.py): its nodes are namespaces (namespaces.py). It makes them,
stops them, and runs commands on them.

It is one process outside all nodes, which answers at a socket in the file system. `ray up` asks it, and so does the
autoscaler on the head node, which could not make namespaces of the machine from within its own.

    python -m tests.nodes.cloud        # until Ctrl-C, which switches all nodes off
"""

import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE

from cluster.config.environment import SECRET_VARIABLE
from cluster.repository import REPO_ROOT
from tests.nodes.cloud_socket import CloudSocket
from tests.nodes.namespaces import Network, Node

logger = logging.getLogger("baton.nodes")

SOCKET: Final = REPO_ROOT / ".baton/cloud.sock"
FIRST: Final = 2
"""Number of the first node. 1 is the machine itself."""
TIMED_OUT: Final = 124
"""Exit status of a command that was cut off, as the shell's `timeout` has it."""
TOKEN: Final = Path.home() / ".ray/auth_token"


@dataclass
class _Instance:
    node: Node
    home: Path
    tags: dict[str, str]


class Cloud:
    def __init__(self, folder: Path, socket: Path = SOCKET) -> None:
        """`folder`: the home directories of the nodes."""
        self._folder = folder
        self._lock = threading.Lock()
        self._instances: dict[str, _Instance] = {}
        self._num_made = 0
        self._network = Network()
        self._socket = CloudSocket(socket, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Switch all nodes off."""
        self._socket.close()
        for name in list(self._instances):
            self.stop_node(name)
        self._network.close()

    def make_node(self, tags: Mapping[str, str]) -> str:
        """Returns its name."""
        with self._lock:
            number = FIRST + self._num_made
            self._num_made += 1
        name = f"node-{number}"
        home = self._folder / name
        home.mkdir()
        made = _Instance(Node(number), home, dict(tags))
        with self._lock:
            self._instances[name] = made
        logger.info("%s (%s) is at %s", name, tags.get(TAG_RAY_USER_NODE_TYPE), made.node.address)
        return name

    def stop_node(self, name: str) -> None:
        """Switch it off: all its processes end at once. Nothing happens if there is no such node."""
        with self._lock:
            instance = self._instances.pop(name, None)
        if instance is not None:
            instance.node.kill()
            logger.info("%s is gone", name)

    def restart_node(self, name: str) -> None:
        """Switch it off and on again: it keeps its home and its address, and nothing runs on it."""
        instance = self._instances[name]
        instance.node.kill()
        instance.node = Node(instance.node.number)

    def names(self, tags: Mapping[str, str]) -> list[str]:
        """Of the nodes that run and have these tags."""
        with self._lock:
            return [name for name, one in self._instances.items() if tags.items() <= one.tags.items()]

    def tags(self, name: str) -> dict[str, str]:
        return dict(self._instances[name].tags)

    def set_tags(self, name: str, tags: Mapping[str, str]) -> None:
        with self._lock:
            self._instances[name].tags |= tags

    def address(self, name: str) -> str:
        return self._instances[name].node.address

    def node(self, name: str) -> Node:
        return self._instances[name].node

    def run(self, name: str, command: str, timeout_s: float) -> tuple[int, str]:
        """Run a command of the shell on a node. Returns its exit status and its output."""
        instance = self._instances[name]
        with tempfile.TemporaryFile() as output:  # what the command leaves running keeps it open
            running = instance.node.start(["bash", "-c", command], _environment(instance), output)
            try:
                status = running.wait(timeout_s)
            except subprocess.TimeoutExpired:
                running.kill()
                status = TIMED_OUT
            output.seek(0)
            return status, output.read().decode(errors="replace")

    def copy(self, name: str, source: str, target: str) -> None:
        """Copy a file or a folder of the machine to a node, which shares the file system except for its home."""
        home = self._instances[name].home
        to = Path(target.replace("~", str(home), 1) if target.startswith("~") else target)
        to.parent.mkdir(parents=True, exist_ok=True)
        if Path(source).resolve() != to.resolve():
            subprocess.run(["cp", "-r", source, str(to)], check=True, capture_output=True)

    def shell(self, name: str) -> str:
        """The command that opens a shell on a node."""
        return shlex.join([*self._instances[name].node.enter, "bash"])


def _environment(instance: _Instance) -> dict[str, str]:
    return {
        "HOME": str(instance.home),
        "NODE_ADDRESS": instance.node.address,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPO_ROOT),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(TOKEN),
        SECRET_VARIABLE: "",  # nodes have a secret of their cluster, whatever this process has
    }


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%X")
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with tempfile.TemporaryDirectory() as folder, Cloud(Path(folder)):
        logger.info("nodes can be made at %s; Ctrl-C switches them off", SOCKET.relative_to(REPO_ROOT))
        stopping.wait()


if __name__ == "__main__":
    main()
