"""Prometheus and Alertmanager, as tests use them. `make monitoring-tools` brings them."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
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
