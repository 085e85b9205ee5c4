"""`baton replay` on the log of a simulated run, from its command line to what it prints."""

import json
import sys
from pathlib import Path
from unicodedata import category

import msgspec
import pytest
from msgspec.structs import replace

from cluster.cli.main import main
from cluster.config.scheduler import StimulusLogConfig
from cluster.messages.scheduler_events import RequestClosed
from cluster.simulation.run import simulate
from cluster.simulation.traffic.log_traffic import read_log
from router.pending_placements import PendingPlacements
from router.placement import cost
from router.recording.frames import encoded, encoded_header, frame
from router.recording.log_files import StimulusLog
from router.recording.recorded_state import RecordedState
from router.recording.records import FORMAT, LogHeader, PlacementAsked, Told
from router.recording.snapshot import SnapshotPart
from router.replay.log_reader import log_files, records_of
from router.state import RouterState
from tests.sim.replay_run import SLOS, a_setting, a_workload
from tests.unit.factories import a_placement_request


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two Schedulers, one after the other."""
    folder = tmp_path_factory.mktemp("stimuli")
    for num_requests in (40, 15):
        logs = list[StimulusLog]()

        def scheduler(logs: list[StimulusLog] = logs) -> PendingPlacements:
            logs.append(StimulusLog(StimulusLogConfig(folder=str(folder), file_bytes=1 << 18), SLOS, 1 << 24))
            return PendingPlacements(RecordedState(RouterState(SLOS), logs[0]))

        simulate(a_workload(num_requests), a_setting(), scheduler)
        logs[0].close()
    return folder


def baton(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["baton", "replay", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_all_decisions_of_both_schedulers_are_the_same(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baton(monkeypatch, log) == 0
    out, err = capsys.readouterr()
    assert err == ""
    placements, replies = out.splitlines()
    assert placements.startswith("placements: ") and placements.endswith("are the same (100.00 %)")
    assert replies.startswith("replies to workers: ") and replies.endswith("are the same (100.00 %)")


def test_policy_that_has_changed_is_found(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost, "MARGIN", 0.5 * cost.MARGIN)
    assert baton(monkeypatch, log, "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert result["different"]["placement"] > 0
    assert result["first_difference"]["then"] != result["first_difference"]["again"]


def test_other_objectives_decide_otherwise_and_the_same_ones_do_not(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same = f"slo.standard.tpot_s={SLOS.standard.tpot_s}"
    assert baton(monkeypatch, log, "--what-if", same, "--json") == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert {name for name, number in changes.items() if number} <= {"the same workers", "refused then and now"}
    assert baton(monkeypatch, log, "--what-if", "slo.standard.tpot_s=0.02", "--what-if", "policy=lmetric") == 0
    out = capsys.readouterr().out
    assert "another path" in out and "is not simulated" in out


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("slo.standard.tpot_s=-1", "slo"),
        ("slo.standard.tpot_s=fast", "not a number"),
        ("slo.nobody.tpot_s=1", "cannot be tried"),
        ("slo.standard.speed=1", "speed"),
        ("scheduler.resources=1", "cannot be tried"),
        ("policy=chance", "none of the policies"),
        ("nothing", "not KEY=VALUE"),
    ],
)
def test_change_that_cannot_be_tried_is_named(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str, why: str
) -> None:
    assert baton(monkeypatch, log, "--what-if", change) == 2
    assert why in capsys.readouterr().err


def finished(folder: Path) -> str:
    """A request that has finished."""
    for file in log_files(folder)[0]:
        for record in records_of(file):
            if isinstance(record, Told) and isinstance(record.event, RequestClosed) and record.event.num_output_tokens:
                return record.event.request_id
    raise AssertionError("no request has finished")


def test_story_of_a_request_says_what_was_considered_and_what_came_of_it(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baton(monkeypatch, log, "--explain", finished(log)) == 0
    out = capsys.readouterr().out
    parts = ["placed", "* path", "first token", "finished with", "TTFT", "predicted", "objective"]
    assert [part for part in parts if part not in out] == []
    assert "Where the time went: " in out.splitlines()[-1]


def test_request_that_is_not_in_the_log_is_an_error(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baton(monkeypatch, log, "--explain", "nobody", "--to", "2000-01-01") == 1
    assert "no request nobody" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"junk", b"baton stimuli\n\xff\xff\xff\xff\0\0\0\0"])
def test_file_that_is_no_log_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    file = tmp_path / "20260131T020000-00000000-000001.stimuli"
    file.write_bytes(content)
    assert baton(monkeypatch, tmp_path) == 2
    assert baton(monkeypatch, file) == 2
    assert baton(monkeypatch, tmp_path / "missing") == 2
    assert capsys.readouterr().err.count("baton: ") == 3


def test_log_that_ends_within_a_record_is_replayed_up_to_there(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = log_files(log)[0][0].path
    torn = tmp_path / whole.name
    torn.write_bytes(whole.read_bytes()[:-7])
    assert baton(monkeypatch, torn) == 0
    out, err = capsys.readouterr()
    assert "are the same (100.00 %)" in out
    assert err == f"baton: {whole.name}: the file ends within a frame\n"


HEADER = LogHeader(
    format=FORMAT,
    protocol=3,
    code="c",
    is_compiled=False,
    run="r",
    number=1,
    epoch=2,
    wall_s=1e9,
    loop_s=5.0,
    slo=SLOS,
    max_indexed_blocks=1024,
    has_snapshot=False,
    is_exact=True,
)
SNAPSHOT = replace(HEADER, number=2, has_snapshot=True)
ASKED = PlacementAsked(6.0, None, a_placement_request("r1", http_request="x\x1b]0;y\x07"), False, "boom\x1b[2J\nline")


@pytest.mark.parametrize(
    "content",
    [
        encoded_header(replace(HEADER, wall_s=1e300)) + encoded([ASKED]),
        encoded_header(replace(HEADER, wall_s=float("nan"))) + encoded([ASKED]),
        encoded_header(HEADER) + frame(b"\x91" * 200_000 + b"\xc0"),
        encoded_header(HEADER) + frame(msgspec.msgpack.encode([ASKED]).replace(b"boom", b"bo\xff\xfe")),
        encoded_header(HEADER).replace(b"\xa1c", b"\xa1\xff"),
        encoded_header(SNAPSHOT)
        + encoded([SnapshotPart([[0, 0, [0, 1]], [5, 1 << 63]], [("router.state:RouterState", ["queue"])])]),
    ],
)
@pytest.mark.parametrize("more", [[], ["--explain", "r1"]])
def test_log_that_is_damaged_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    more: list[str],
) -> None:
    file = tmp_path / "20260131T020000-00000000-000001.stimuli"
    file.write_bytes(content)
    assert baton(monkeypatch, file, *more) in (1, 2)
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--explain", "r1"], ["--explain", "no\x1b[2J"], ["--explain", "r1", "--json"]])
def test_texts_of_clients_control_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    file = tmp_path / "20260131T020000-00000000-000001.stimuli"
    file.write_bytes(encoded_header(HEADER) + encoded([ASKED]))
    baton(monkeypatch, file, *more)
    shown = "".join(capsys.readouterr())
    assert shown and not {*map(category, shown.replace("\n", ""))} & {"Cc", "Cf"}
    assert "\nline" not in shown


def test_requests_of_a_log_are_traffic_for_the_simulator(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = read_log(log)
    sent = [*a_workload(40), *a_workload(15)]
    assert sorted((row.num_prompt, row.tenant, row.slo_class, row.block_hashes) for row in rows) == sorted(
        (row.num_prompt, row.tenant, row.slo_class, row.block_hashes) for row in sent
    )
    assert rows[0].arrival_s == 0.0 < rows[-1].arrival_s
    arguments = ("--log", str(log), "--rows", "0:20", "--policy", "round_robin", "--slo", "mid")
    monkeypatch.setattr(sys, "argv", ["baton", "simulate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert f"{log}: 20 requests" in capsys.readouterr().err


def test_folder_without_a_log_is_no_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["baton", "simulate", "--log", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "has no file of a stimulus log" in capsys.readouterr().err
