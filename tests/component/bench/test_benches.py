"""Benchmarks run seldom: each can at least be started."""

import subprocess
import sys

import pytest

from cluster.repository import REPO_ROOT

BENCHES = sorted(file.stem for file in (REPO_ROOT / "bench").glob("[a-z]*.py"))


@pytest.mark.parametrize("bench", BENCHES)
def test_bench_shows_how_it_is_used(bench: str) -> None:
    command = [sys.executable, "-m", f"bench.{bench}", "--help"]
    shown = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "usage:" in shown.stdout
