"""What keeps a disk tier within its capacity."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvtransfer.tiers import disk_prune
from kvtransfer.tiers.disk_prune import ABANDONED_S, prune, surplus

NOW = 1_000_000.0


def a_file(folder: Path, name: str, *, age_s: float, num_bytes: int = 10) -> Path:
    file = folder / "namespace" / "model_r0" / "abc" / "de_g0" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(num_bytes))
    os.utime(file, (NOW - age_s, NOW - age_s))
    return file


def blocks_of(folder: Path, num: int) -> list[Path]:
    """The first was used last."""
    return [a_file(folder, f"{age}.bin", age_s=age) for age in range(num)]


@pytest.mark.parametrize(("capacity", "num_left"), [(100, 10), (99, 8), (50, 4), (10, 0), (0, 0)])
def test_blocks_not_used_for_longest_go_until_the_rest_fits_with_room_to_spare(
    tmp_path: Path, capacity: int, num_left: int
) -> None:
    blocks = blocks_of(tmp_path, 10)
    prune(tmp_path, capacity, NOW)
    assert [block.exists() for block in blocks] == [True] * num_left + [False] * (10 - num_left)


def test_block_that_is_read_stays(tmp_path: Path) -> None:
    blocks = blocks_of(tmp_path, 4)
    os.utime(blocks[-1], (NOW, NOW - 3))
    prune(tmp_path, 39, NOW)
    assert [block.exists() for block in blocks] == [True, True, False, True]


def test_nothing_goes_from_an_empty_disk(tmp_path: Path) -> None:
    prune(tmp_path / "absent", 0, NOW)
    assert surplus([], 0) == []


def test_what_is_no_block_is_left_alone(tmp_path: Path) -> None:
    others = [tmp_path / "model.bin", tmp_path / "a" / "b.bin", tmp_path / "n" / "m_r0" / "abc" / "weights.bin"]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(bytes(100))
    prune(tmp_path, 0, NOW)
    assert all(other.exists() for other in others)


def test_file_that_a_dead_process_was_writing_goes(tmp_path: Path) -> None:
    abandoned = a_file(tmp_path, "0.bin_123.tmp", age_s=ABANDONED_S + 1)
    current = a_file(tmp_path, "1.bin_123.tmp", age_s=ABANDONED_S - 1)
    prune(tmp_path, 1000, NOW)
    assert (abandoned.exists(), current.exists()) == (False, True)


def test_program_prunes_the_folder_that_it_is_given(tmp_path: Path) -> None:
    blocks = blocks_of(tmp_path, 3)
    subprocess.run([sys.executable, disk_prune.__file__, str(tmp_path), "29"], check=True)
    assert [block.exists() for block in blocks] == [True, True, False]
