"""Who owns a DRAM tier's file in shared memory, and what becomes of it."""

import signal
import subprocess
import sys
from pathlib import Path

from kvtransfer.tier_memory import TierMemory


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def a_tier(folder: Path, engine_id: str) -> Path:
    file = folder / f"vllm_offload_{engine_id}.mmap"
    file.write_bytes(b"kv")
    return file


def test_file_of_an_owner_that_was_killed_goes_when_the_next_engine_starts(tmp_path):
    program = (
        "import sys, pathlib\n"
        "from kvtransfer.tier_memory import TierMemory\n"
        "memory = TierMemory('killed', pathlib.Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
        tier = a_tier(tmp_path, "killed")
        TierMemory("second", tmp_path).release()
        assert tier.exists()
        owner.send_signal(signal.SIGKILL)
    TierMemory("third", tmp_path).release()
    assert files(tmp_path) == set()


def test_release_removes_what_the_engine_left(tmp_path):
    memory = TierMemory("engine", tmp_path)
    a_tier(tmp_path, "engine")
    a_tier(tmp_path, "engine_dp1")
    memory.release()
    assert files(tmp_path) == set()


def test_tier_of_another_program_is_left_alone(tmp_path):
    a_tier(tmp_path, "not-ours")
    TierMemory("engine", tmp_path).release()
    assert files(tmp_path) == {"vllm_offload_not-ours.mmap"}
