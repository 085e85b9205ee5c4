"""Benchmarks run seldom: each can at least be started."""

import subprocess
import sys

import pytest

from cluster.config.repository import REPO_ROOT

BENCHES = sorted((REPO_ROOT / "bench").glob("*.py"))


@pytest.mark.parametrize("bench", BENCHES, ids=lambda file: file.stem)
def test_bench_says_how_it_is_used(bench):
    told = subprocess.run([sys.executable, bench, "--help"], cwd=REPO_ROOT, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    assert "usage:" in told.stdout
