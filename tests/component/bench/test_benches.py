"""Benchmarks run seldom: each can at least be started."""

import re
import subprocess
import sys

import pytest

from cluster.repository import REPO_ROOT

BENCHES = sorted(
    {file.stem for file in (REPO_ROOT / "bench").glob("[a-z]*.py")}
    | set(re.findall(r"-m bench\.([a-z_.]+)", (REPO_ROOT / "Makefile").read_text()))
)
START_ALL = """
import os, runpy, sys, traceback
import vllm.entrypoints.openai.chat_completion.protocol  # what takes long to import, once for all
folder, *benches = sys.argv[1:]
for bench in benches:
    if not os.fork():
        shown = os.open(f"{folder}/{bench}", os.O_WRONLY | os.O_CREAT)
        os.dup2(shown, 1), os.dup2(shown, 2)
        sys.argv, status = [bench, "--help"], 1
        try:
            runpy.run_module(f"bench.{bench}", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)  # at once: it takes seconds to free what was imported
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
"""Starts each bench in a process of its own, and prints their exit statuses."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The exit status of each bench, and what it has shown."""
    folder = tmp_path_factory.mktemp("benches")
    command = [sys.executable, "-c", START_ALL, str(folder), *BENCHES]
    ran = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr
    statuses = map(int, ran.stdout.split())
    return {bench: (status, (folder / bench).read_text()) for bench, status in zip(BENCHES, statuses, strict=True)}


@pytest.mark.parametrize("bench", BENCHES)
def test_bench_shows_how_it_is_used(bench: str, started: dict[str, tuple[int, str]]) -> None:
    status, shown = started[bench]
    assert status == 0, shown
    assert "usage:" in shown
