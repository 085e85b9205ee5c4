"""A longer run in which workers die and come back, and requests wait, pause and are refused, is decided again."""

import subprocess
import sys
from pathlib import Path

import msgspec

from cluster.compiled import ROOT
from router.recording.records import PausesTaken, PlacementAsked
from tests.sim.replay_run import SLOS, run
from tests.unit.router.recording.memory_log import MemoryLog, different, replayed

AGAIN = """
import sys
from pathlib import Path
import msgspec
from router.recording.records import Stimulus
from tests.sim.replay_run import SLOS
from tests.unit.router.recording.memory_log import different, replayed
kinds = tuple[list[Stimulus], int, bytes]
records, place, snapshot = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=kinds)
print(len(different(replayed(records, SLOS))), len(different(replayed(records[place:], SLOS, snapshot))))
"""


def test_run_with_faults_is_decided_again_in_this_process_and_in_another(tmp_path: Path) -> None:
    """Another process hashes strings otherwise, so no decision may depend on the order of a set. It is not compiled, as
    that of `baton replay`: compiled classes cannot be filled from a snapshot.
    """
    log = MemoryLog(snapshot_every=500)
    ended = run(log)
    assert sum(record.num_pauses for record in ended) > 0
    assert sum(record.num_attempts > 1 for record in ended) > 20
    assert sum(isinstance(record, PlacementAsked) and record.answer is None for record in log.records) > 20
    assert any(isinstance(record, PausesTaken) for record in log.records)
    records = log.as_read()
    place, snapshot = log.snapshots[-1]
    assert different(replayed(records, SLOS)) == []
    file = tmp_path / "records"
    file.write_bytes(msgspec.msgpack.encode((records, place, snapshot)))
    again = subprocess.run(
        [sys.executable, "-c", AGAIN, str(file)],
        cwd=ROOT,
        env={"PYTHONHASHSEED": "7", "BATON_PURE_PYTHON": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.split() == ["0", "0"]
