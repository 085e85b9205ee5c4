"""Handshakes that are under way when an ingress replica stops listening, beside its successor."""

import json
import subprocess
import sys

from cluster.repository import REPO_ROOT
from tests.nodes.handshakes import NUM_CLIENTS, NUM_ROUNDS


def test_kernel_that_migrates_handshakes_loses_none_and_another_one_does() -> None:
    command = ["unshare", "--net", sys.executable, "-m", "tests.nodes.handshakes"]
    seen = json.loads(subprocess.run(command, cwd=REPO_ROOT, check=True, capture_output=True, text=True).stdout)
    assert seen["1"] == {"answered": NUM_ROUNDS * NUM_CLIENTS}
    assert seen["0"]["reset"] > 0
