"""Handshakes that are under way when an ingress replica stops listening, beside its successor."""

import subprocess
import sys
from collections import Counter

from cluster.repository import REPO_ROOT
from tests.nodes.handshakes import NUM_CLIENTS, NUM_ROUNDS


def ends(migrates: bool) -> Counter[str]:
    command = ["unshare", "--net", sys.executable, "-m", "tests.nodes.handshakes", str(int(migrates))]
    return Counter(subprocess.run(command, cwd=REPO_ROOT, check=True, capture_output=True, text=True).stdout.split())


def test_kernel_that_migrates_handshakes_loses_none_and_another_one_does() -> None:
    assert ends(migrates=True) == {"answered": NUM_ROUNDS * NUM_CLIENTS}
    assert ends(migrates=False)["reset"] > 0
