"""`baton quality` as a user runs it, against a server that answers as an ingress does."""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import msgspec
import pytest

from api.quality.board import LearningState, ProbeRun, QualityView, ReferenceView, TargetView
from api.quality.comparison import Difference, ProbeResult
from api.quality.probe_set import OWN_PROMPTS, ProbeSet, Reference, parsed
from api.quality.rounds import NO_MAJORITY
from cluster.cli.operate import quality as module
from cluster.cli.operate.quality import is_right, shown
from cluster.config.environment import ADMIN_KEY_VARIABLE
from cluster.messages.ids import Path, WorkerId
from cluster.repository import REPO_ROOT
from tests.component.app_with_fakes import ADMIN_KEY
from tests.unit.api.quality.answers import an_answer

RIGHT = TargetView(worker=WorkerId("p0"), path=Path.PREFILL, score=1.0, result=ProbeResult.AGREES, at=100.0)
WRONG = TargetView(
    worker=WorkerId("d0"),
    path=Path.PREFILL_DECODE,
    score=0.25,
    result=ProbeResult.DIFFERS,
    at=90.0,
    difference=Difference(prompt="water", position=3, expected=11, got=22, distance=4.5, is_cached=True, beside="p0"),
    quarantined="2 answers in a row differ",
)
FAILED = ReferenceView(origin="none", note=NO_MAJORITY)
LEARNED = ReferenceView(origin="learned", learned_at=0.0, num_prompts=4)


def a_view(
    *targets: TargetView, reference: ReferenceView = LEARNED, learning: LearningState | None = None
) -> QualityView:
    run = ProbeRun(id="1", num_done=2, num_targets=2, learning=learning)
    return QualityView(replica="i0", reference=reference, targets=list(targets), run=run)


PROBES = ProbeSet(
    prompts=OWN_PROMPTS,
    reference=Reference(fingerprint="f", model="m", learned_at=0.0, answers={"water": an_answer(1)}),
)
ANSWERS = {
    "/baton/quality": (200, msgspec.json.encode(a_view(RIGHT))),
    "/baton/quality/reference": (200, msgspec.json.encode(PROBES)),
    "/wrong/baton/quality": (200, msgspec.json.encode(a_view(RIGHT, WRONG))),
    "/failed/baton/quality": (200, msgspec.json.encode(a_view(RIGHT, reference=FAILED, learning=LearningState.FAILED))),
    "/failed/baton/quality/learn": (200, b'{"id": "1"}'),
    "/learned/baton/quality": (200, msgspec.json.encode(a_view(RIGHT, learning=LearningState.LEARNED))),
    "/learned/baton/quality/learn": (200, b'{"id": "1"}'),
    "/learned/baton/quality/reference": (200, msgspec.json.encode(PROBES)),
    "/baton/quality/run": (200, b'{"id": "1"}'),
    "/baton/quality/learn": (200, b'{"id": "1"}'),
    "/baton/quality/release/p0": (200, b'{"id": "1"}'),
}


def baton_quality(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cluster.cli.main import main; main()", "quality", *arguments]
    environment = os.environ | {ADMIN_KEY_VARIABLE: ADMIN_KEY}
    return subprocess.run(command, cwd=REPO_ROOT, env=environment, capture_output=True, text=True, check=False)


def test_each_target_has_a_row_and_a_wrong_one_says_where_it_left_the_reference() -> None:
    about, header, right, wrong, quarantine = shown(a_view(RIGHT, WRONG), 130.0).splitlines()
    assert about == "Reference: learned, 4 prompts, of 1970-01-01 00:00 UTC."
    assert header.split()[:4] == ["worker", "path", "score", "last"]
    assert right.split() == ["p0", "P", "1.00", "30", "s", "ago", "agrees"]
    assert "water: token 3 is 22, not 11 (4.50 nats apart) from a cache beside p0" in wrong
    assert quarantine.startswith("d0 would be in quarantine if quality_probe.quarantine were on: 2 answers")


@pytest.mark.parametrize(
    ("view", "says", "right"),
    [
        (QualityView(enabled=False), "The quality probe is off", True),
        (QualityView(), "No ingress replica probes now", False),
        (a_view(RIGHT, reference=ReferenceView(origin="none")), "There is no reference yet", False),
        (a_view(WRONG, reference=ReferenceView(origin="file", is_at_fault=True)), "ALL workers differ", False),
        (a_view(RIGHT), "Reference: learned", True),
    ],
)
def test_state_of_the_probe_is_said(view: QualityView, says: str, right: bool) -> None:
    assert shown(view, 0.0).startswith(says)
    assert is_right(view) is right


def test_table_is_printed_and_a_wrong_worker_is_an_error(server: str) -> None:
    done = baton_quality("--url", server)
    assert (done.returncode, done.stderr) == (0, "")
    done = baton_quality("--url", f"{server}/wrong")
    assert done.returncode == 1
    assert "token 3 is 22" in done.stdout


def test_reference_is_written_to_a_file_after_a_round(server: str, tmp_path: FilePath) -> None:
    file = tmp_path / "reference.json"
    done = baton_quality("--url", server, "--learn", str(file))
    assert done.returncode == 0, done.stderr
    assert "2 of 2 probed" in done.stderr
    assert parsed(file.read_bytes()) == PROBES


def test_learning_that_has_failed_writes_no_file_and_says_why(server: str, tmp_path: FilePath) -> None:
    file = tmp_path / "reference.json"
    done = baton_quality("--url", f"{server}/failed", "--learn", str(file))
    assert (done.returncode, file.exists()) == (1, False)
    assert f"no reference was learned: {NO_MAJORITY}" in done.stderr
    done = baton_quality("--url", f"{server}/learned", "--learn", str(file))
    assert (done.returncode, file.exists()) == (0, True)
    assert "a reference was learned" in done.stderr


def test_run_of_learning_is_not_over_before_it_has_learned_or_failed() -> None:
    for learning in (None, *LearningState):
        run = ProbeRun(id="1", num_done=2, num_targets=2, learning=learning)
        assert run.is_over is (learning is not LearningState.LEARNING)


def test_round_that_another_one_has_replaced_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [ProbeRun(id=id, num_done=0, num_targets=2) for id in ("earlier", "1", "later")]
    answers: Iterator[Any] = iter([module._Asked("1"), *(QualityView(run=run) for run in runs)])
    monkeypatch.setattr(module, "ask", lambda *_: (next(answers), b""))
    monkeypatch.setattr(module, "POLL_S", 0.0)
    assert module._run(argparse.Namespace(release=None, run_now=True, learn=None)) == 1
    assert "has ended this round" in capsys.readouterr().err
    assert next(answers, None) is None


def test_worker_is_released_only_if_there_is_such_a_worker(server: str) -> None:
    assert baton_quality("--url", server, "--release", "p0").returncode == 0
    done = baton_quality("--url", server, "--release", "p9")
    assert (done.returncode, done.stderr.strip()) == (2, "baton: there is no worker p9: p0")


def test_texts_of_a_service_control_no_terminal() -> None:
    worker = WorkerId("d0\x1b[2J\nowned\x07")
    view = a_view(TargetView(worker=worker, path=Path.DECODE, quarantined="\x1b]0;x\x07"))
    text = shown(view, 0.0)
    assert "d0?[2J?owned?" in text
    assert text.replace("\n", "").isprintable() and len(text.splitlines()) == 4
