"""The names of DRAM tiers in shared memory, and what becomes of them."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvtransfer.tiers.shared_memory import named_while_starting

START_AND_HANG = """
import sys, pathlib
from kvtransfer.tiers.shared_memory import named_while_starting
with named_while_starting("killed", pathlib.Path(sys.argv[1])):
    print("starting", flush=True)
    sys.stdin.read()
"""


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def a_tier(folder: Path, engine_id: str) -> Path:
    file = folder / f"vllm_offload_{engine_id}.mmap"
    file.write_bytes(b"kv")
    return file


def test_tier_has_a_name_only_while_its_engine_starts(tmp_path: Path) -> None:
    with named_while_starting("engine", tmp_path):
        tiers = [a_tier(tmp_path, "engine"), a_tier(tmp_path, "engine_dp1")]
        assert all(tier.exists() for tier in tiers)
    assert names(tmp_path) == set()


def test_tier_of_an_engine_that_does_not_start_goes(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"), named_while_starting("engine", tmp_path):
        a_tier(tmp_path, "engine")
        raise RuntimeError("out of memory")
    assert names(tmp_path) == set()


def test_tier_of_a_start_that_was_killed_goes_when_the_next_engine_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START_AND_HANG, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starting:
        assert starting.stdout is not None and starting.stdout.readline() == b"starting\n"
        tier = a_tier(tmp_path, "killed")
        with named_while_starting("second", tmp_path):
            assert tier.exists()
        starting.send_signal(signal.SIGKILL)
    with named_while_starting("third", tmp_path):
        assert not tier.exists()
    assert names(tmp_path) == set()


def test_tier_of_another_program_is_left_alone(tmp_path: Path) -> None:
    a_tier(tmp_path, "not-ours")
    with named_while_starting("engine", tmp_path):
        pass
    assert names(tmp_path) == {"vllm_offload_not-ours.mmap"}
