"""Prometheus and Alertmanager, as tests use them. `make monitoring-tools` brings them."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.repository import REPO_ROOT

TOOLS = REPO_ROOT / ".baton/monitoring/usr/bin"
RULES = REPO_ROOT / "conf/prometheus/baton.rules.yml"


def tool(name: str) -> str:
    """The path of a program."""
    found = shutil.which(name, path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    assert found is not None, f"{name} is missing: run `make monitoring-tools`"
    return found


def run_tool(name: str, *arguments: str | Path, stdin: bytes = b"") -> str:
    """What a program prints. It must end with 0."""
    done = subprocess.run([tool(name), *arguments], input=stdin, capture_output=True, timeout=120)
    printed = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, printed
    return printed


def check_rules(folder: Path, tests: Sequence[Mapping[str, Any]], rules: Path = RULES) -> None:
    """Run unit tests of `promtool test rules`, in the form of its documentation."""
    # JSON is YAML. Rules are evaluated as often as in conf/prometheus/prometheus.yml
    text = json.dumps({"rule_files": [str(rules)], "evaluation_interval": "15s", "tests": list(tests)})
    file = folder / "rules.test.yml"
    file.write_text(text)
    run_tool("promtool", "test", "rules", file)


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def running(folder: Path, name: str, *arguments: str) -> Iterator[int]:
    """Run a program on a free port until the end of the block. What it prints is in the folder."""
    port = a_free_port()
    command = [tool(name), *arguments, f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield port
        finally:
            process.kill()
            process.wait()
