"""The files of the stimulus log, written by their thread."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from cluster.config.scheduler import SchedulerConfig, StimulusLogConfig
from cluster.messages.ids import CellName, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from cluster.slo import SloConfig
from router.recording import log_files
from router.recording.log_files import WRITTEN_S, StimulusLog, remove_old, start_log
from router.recording.recorded_state import RecordedState
from router.recording.records import Disconnected, LogGap, Record
from router.recording.snapshot import SnapshotPart
from router.replay.comparison import Comparison
from router.replay.log_reader import LogFile, records_of
from router.replay.log_reader import log_files as files_of
from router.replay.replay import Replay
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_placement_request

SLO = SloConfig()
LEAST_FILE_BYTES = 1 << 18


def a_config(folder: Path, **fields: float) -> StimulusLogConfig:
    return StimulusLogConfig(folder=str(folder), file_bytes=LEAST_FILE_BYTES, **fields)  # type: ignore[arg-type]  # of the fields that are named


def a_log(folder: Path, **fields: float) -> StimulusLog:
    return StimulusLog(a_config(folder, **fields), SLO, 1024)


def some_events(number: int) -> KvEvents:
    keys = [b"%08d" % (1000 * number + block) for block in range(1000)]
    return KvEvents(WorkerId("d0"), number, False, True, [KvChange(KvTier.GPU, True, keys)])


def read(files: list[LogFile]) -> list[Record]:
    found = []
    for file in files:
        for record in records_of(file):
            assert not isinstance(record, tuple), record
            found.append(record)
    return found


def lost() -> float:
    return REGISTRY.get_sample_value("baton_stimulus_log_lost_records_total") or 0.0


async def recorded(folder: Path, num_events: int, **fields: float) -> None:
    """Enough KV events for several files, and the Scheduler's decisions between them."""
    log = a_log(folder, **fields)
    state = RecordedState(RouterState(SLO, max_indexed_blocks=1024), log)
    state.handle(a_decode_report("d0", ""), 0.0)
    state.reply_to(a_decode_report("d0", ""), 0.0)
    for number in range(num_events):
        state.handle_kv_events(some_events(number), 0.01 * number)
        state.place(a_placement_request(f"r{number}"), 0.01 * number)
        if number % 8 == 0:
            state.handle(a_decode_report("d0", ""), 0.01 * number)
            state.reply_to(a_decode_report("d0", ""), 0.01 * number)
            log.flush()
            await written(log)
            log.flush()
    log.close()


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110  # a thread does it
            await asyncio.sleep(0.001)


async def written(log: StimulusLog) -> None:
    """The next flush knows of it."""
    await until(lambda: log._writer.num_out == log._num_in)


async def test_files_are_the_owner_s_alone_and_can_be_replayed_from_any_on(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "stimuli"
    await recorded(folder, 60)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files, wrong = files_of(folder)
    assert not wrong
    assert [file.header.number for file in files] == list(range(1, len(files) + 1))
    assert len(files) > 2
    assert {stat.S_IMODE(file.path.stat().st_mode) for file in files} == {0o600}
    for first in range(len(files)):
        comparison = Comparison()
        make = lambda header: RouterState(header.slo, max_indexed_blocks=header.max_indexed_blocks)  # noqa: E731
        Replay(files[first:], make, comparison).run(None, None)
        assert comparison.num_equal.total() > 0
        assert not comparison.num_different and not comparison.num_inexact and not comparison.notes


async def test_oldest_files_are_removed_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("of somebody else")
    old = tmp_path / "20200101T000000-00000000-000001.stimuli"
    old.write_bytes(b"old")
    os.utime(old, (0, 0))
    await recorded(tmp_path, 120, max_bytes=1 << 20)
    files, _ = files_of(tmp_path)
    assert not old.exists()
    assert files[0].header.number > 1
    assert sum(file.path.stat().st_size for file in files) <= 1 << 20
    assert (tmp_path / "notes.txt").exists()


async def test_what_comes_faster_than_it_is_written_is_counted_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "RETRY_S", 0.0)
    before = lost()
    log = StimulusLog(a_config(tmp_path), SLO, 1024, max_queued_bytes=1000)
    log.add(Disconnected(WorkerId("d0")), 100)
    log.flush()
    for number in range(11):
        log.add(Disconnected(WorkerId(f"lost{number}")), 100)
    log.flush()
    assert lost() - before == 11
    assert log.is_due
    log.begin_file(RouterState(SLO, max_indexed_blocks=1024))
    log.add(Disconnected(WorkerId("after")), 100)
    log.close()
    files, _ = files_of(tmp_path)
    assert [file.header.is_exact for file in files] == [True, False]
    assert read(files[:1]) == [Disconnected(WorkerId("d0"))]
    first, *_, last = read(files[1:])
    assert isinstance(first, SnapshotPart)
    assert last == Disconnected(WorkerId("after"))


async def test_gap_within_a_file_is_marked(tmp_path: Path) -> None:
    log = StimulusLog(a_config(tmp_path), SLO, 1024, max_queued_bytes=1000)
    log.add(Disconnected(WorkerId("d0")), 100)
    log.flush()
    log.add(Disconnected(WorkerId("lost")), 1001)
    log.flush()
    log.add(Disconnected(WorkerId("d1")), 100)
    log.close()
    files, _ = files_of(tmp_path)
    assert read(files) == [Disconnected(WorkerId("d0")), LogGap(1), Disconnected(WorkerId("d1"))]
    comparison = Comparison()
    Replay(files, lambda header: RouterState(header.slo), comparison).run(None, None)
    assert len(comparison.notes) == 1
    assert comparison.notes[0].endswith("1 records are missing")


async def test_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    before = lost()
    log = a_log(tmp_path / "file" / "stimuli")
    log.add(Disconnected(WorkerId("d0")), 100)
    log.close()
    assert lost() - before == 1
    assert "cannot be written" in caplog.text
    with pytest.raises(OSError, match="file"):
        files_of(tmp_path / "file" / "stimuli")


async def test_log_begins_anew_once_its_folder_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "RETRY_S", 0.0)
    folder = tmp_path / "stimuli"
    folder.write_text("in the way")
    log = a_log(folder)
    log.add(Disconnected(WorkerId("d0")), 100)
    log.flush()
    await written(log)
    folder.unlink()
    log.flush()
    assert log.is_due
    log.begin_file(RouterState(SLO, max_indexed_blocks=1024))
    log.add(Disconnected(WorkerId("d1")), 100)
    log.close()
    (file,), _ = files_of(folder)
    assert (file.header.number, file.header.is_exact, file.header.has_snapshot) == (2, False, True)


async def test_what_is_recorded_is_written_soon_and_not_only_at_the_end(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    log.add(Disconnected(WorkerId("d0")), 100)
    await until(lambda: any(file.stat().st_size > 0 for file in tmp_path.iterdir()) and read(files_of(tmp_path)[0]))
    log.close()


async def test_each_cell_has_a_folder_and_no_log_is_kept_without_one(tmp_path: Path) -> None:
    assert start_log(SchedulerConfig(), SLO, None) is None
    config = SchedulerConfig(stimulus_log=a_config(tmp_path))
    for cell in ("east", "west"):
        log = start_log(config, SLO, CellName(cell))
        assert log is not None
        log.add(Disconnected(WorkerId("d0")), 100)
        log.close()
    assert sorted(os.listdir(tmp_path)) == ["east", "west"]


async def test_file_that_another_scheduler_writes_stays_until_it_writes_no_more(tmp_path: Path) -> None:
    others, own = (tmp_path / f"20260101T000000-{run * 8}-000001.stimuli" for run in "12")
    for file in (others, own):
        file.write_bytes(bytes(LEAST_FILE_BYTES + 1))
    config, now = a_config(tmp_path, max_bytes=2 * LEAST_FILE_BYTES), others.stat().st_mtime
    remove_old(tmp_path, "20260101T000009-22222222-000003.stimuli", config, now + 1.0)
    assert (others.exists(), own.exists()) == (True, False)
    remove_old(tmp_path, "20260101T000009-22222222-000003.stimuli", config, now + WRITTEN_S + 1.0)
    assert not others.exists()


async def test_file_that_another_process_has_just_removed_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, old = (tmp_path / f"2020010{day}T000000-00000000-000001.stimuli" for day in (2, 1))
    old.write_bytes(b"old")
    os.utime(old, (0, 0))
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([gone, old]))
    remove_old(tmp_path, "20260101T000009-22222222-000003.stimuli", a_config(tmp_path, max_bytes=1 << 20), 1e9)
    assert not old.exists()
