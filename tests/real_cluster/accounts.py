"""Tenants and API keys of a running service, made as an operator makes them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.real_cluster.service import Service


def baton(service: Service, *arguments: str) -> dict[str, Any]:
    command = [str(Path(sys.executable).with_name("baton")), *arguments, "--json", "--conf", str(service.config_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
