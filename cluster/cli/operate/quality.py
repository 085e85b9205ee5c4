"""`baton quality`: whether the workers of a running service answer as the reference does."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from api.quality.board import LearningState, ProbeRun, QualityView, ReferenceView, TargetView
from api.quality.comparison import Difference, ProbeResult
from api.quality.probe_set import ProbeSet, written
from cluster.cli.ask_service import add_service_options, ask
from cluster.cli.operate.visible import visible
from cluster.messages.ids import WorkerId

HEADER = ("worker", "path", "score", "last", "result", "last difference")
WAIT_S = 900.0
"""Longest time for which `baton quality` waits for a round, in seconds. Longer waits for a service that never probes;
shorter gives up on a large cluster.
"""
LEARN_ROUNDS = 3.0
"""Times of `every_s` for which `baton quality --learn` waits beyond WAIT_S: workers may be busy. More waits longer
for a service that never probes; fewer gives up before the service does.
"""
POLL_S = 1.0
"""Time between two looks at the progress of a round, in seconds. Longer notices its end later; shorter asks the service
more often.
"""


class _Asked(msgspec.Struct):
    """The service has taken a command."""

    id: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows each worker on each path with the score of its answers to probes, the latest result, and "
        "where an answer last left the reference. Ends with 1 if the service does not answer, if a worker differs from "
        "the reference, or if there is none."
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--run", action="store_true", dest="run_now", help="probe all workers now, and wait")
    action.add_argument(
        "--learn", type=Path, metavar="FILE", help="learn a new reference now, and write it with its prompts to a file"
    )
    action.add_argument("--release", metavar="WORKER", help="end the quarantine of a worker")
    add_service_options(parser)
    parser.add_argument("--json", action="store_true", help="print the answer of GET /baton/quality")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.release is not None:
        return _release(arguments, WorkerId(arguments.release))
    if (arguments.run_now or arguments.learn is not None) and not _waited(arguments):
        return 1
    answer = ask(arguments, "/baton/quality", QualityView)
    if answer is None:
        return 1
    view, body = answer
    print(json.dumps(json.loads(body), indent=2) if arguments.json else shown(view, time.time()))
    if arguments.learn is not None and not _write(arguments):
        return 1
    return 0 if is_right(view) else 1


def shown(view: QualityView, unix_time: float) -> str:
    """For a terminal."""
    if not view.enabled:
        return "The quality probe is off (quality_probe.enabled of the config)."
    if view.replica is None:
        return "No ingress replica probes now."
    rows = [HEADER, *(_row(target, unix_time) for target in view.targets)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    held = {target.worker: target.quarantined for target in view.targets if target.quarantined is not None}
    state = "is in quarantine" if view.quarantine else "would be in quarantine if quality_probe.quarantine were on"
    lines = [_about(view.reference), *lines, *(f"{worker} {state}: {why}" for worker, why in held.items())]
    return "\n".join(map(visible, lines))


def is_right(view: QualityView) -> bool:
    """Whether there is a reference, and no worker differs from it."""
    if not view.enabled:
        return True
    reference = view.reference
    return (
        reference is not None
        and reference.origin != "none"
        and not any(target.result is ProbeResult.DIFFERS for target in view.targets)
    )


def _about(reference: ReferenceView | None) -> str:
    if reference is None or reference.origin == "none":
        said = "There is no reference yet: it is learned when all workers have answered"
    elif reference.is_at_fault:
        said = "ALL workers differ from the reference, so it is the reference that is wrong (baton quality --learn)"
    else:
        said = f"Reference: {reference.origin}, {reference.num_prompts} prompts"
        said += f", of {_day(reference.learned_at)}" if reference.learned_at is not None else ""
    return said + (f". Note: {reference.note}." if reference is not None and reference.note else ".")


def _row(target: TargetView, unix_time: float) -> tuple[str, ...]:
    score = "-" if target.score is None else f"{target.score:.2f}"
    last = "-" if target.at is None else f"{max(0.0, unix_time - target.at):.0f} s ago"
    return (target.worker, target.path, score, last, target.result or "-", _where(target.difference))


def _where(difference: Difference | None) -> str:
    if difference is None:
        return ""
    distance = "infinitely" if difference.distance is None else f"{difference.distance:.2f} nats"
    said = f"{difference.prompt}: token {difference.position} is {difference.got}, not {difference.expected}"
    if difference.got == difference.expected:
        said = f"{difference.prompt}: token {difference.position} is {difference.got}, less or more likely"
    said += f" ({distance} apart)"
    said += " from a cache" if difference.is_cached else ""
    return said + (f" beside {difference.beside}" if difference.beside is not None else "")


def _day(unix_time: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_time))


def _waited(arguments: argparse.Namespace) -> bool:
    """Begin a round and wait for its end. Prints what is wrong and returns False if it does not end."""
    path = "/baton/quality/run" if arguments.learn is None else "/baton/quality/learn"
    asked = ask(arguments, path, _Asked, {})
    if asked is None:
        return False
    began, wait_s, said = time.monotonic(), WAIT_S, None
    while time.monotonic() < began + wait_s:
        answer = ask(arguments, "/baton/quality", QualityView)
        if answer is None:
            return False
        view, run = answer[0], answer[0].run
        if arguments.learn is not None:
            wait_s = WAIT_S + LEARN_ROUNDS * view.every_s
        if run is not None and run.id == asked[0].id:
            if run != said:
                print(_progress(run), file=sys.stderr)
            if run.is_over:
                return _is_learned(run, view.reference)
            said = run
        elif said is not None:
            print("baton: another round or another replica has ended this round: ask again", file=sys.stderr)
            return False
        time.sleep(POLL_S)
    print(f"baton: the round has not ended within {wait_s:g} s", file=sys.stderr)
    return False


def _is_learned(run: ProbeRun, reference: ReferenceView | None) -> bool:
    """Says whether a reference was learned, if one was asked for. False if not."""
    if run.learning is LearningState.FAILED:
        why = reference.note if reference is not None else None
        print(f"baton: no reference was learned: {why or 'it is not known why'}", file=sys.stderr)
        return False
    if run.learning is LearningState.LEARNED:
        print("a reference was learned", file=sys.stderr)
    return True


def _progress(run: ProbeRun) -> str:
    return f"{run.num_done} of {run.num_targets} probed"


def _write(arguments: argparse.Namespace) -> bool:
    """Prints what is wrong and returns False if there is no reference or the file cannot be written."""
    answer = ask(arguments, "/baton/quality/reference", ProbeSet)
    if answer is None:
        return False
    try:
        arguments.learn.write_bytes(written(answer[0]))
    except OSError as error:
        print(f"baton: {error}", file=sys.stderr)
        return False
    print(f"{arguments.learn} has the prompts and the reference: name it in quality_probe.file", file=sys.stderr)
    return True


def _release(arguments: argparse.Namespace, worker: WorkerId) -> int:
    answer = ask(arguments, "/baton/quality", QualityView)
    if answer is None:
        return 1
    if worker not in [target.worker for target in answer[0].targets]:
        print(visible(f"baton: there is no worker {worker}: {_known(answer[0].targets)}"), file=sys.stderr)
        return 2
    if ask(arguments, f"/baton/quality/release/{quote(worker, safe='')}", _Asked, {}) is None:
        return 1
    print(f"worker {worker} counts as right until it answers wrongly again")
    return 0


def _known(targets: Sequence[TargetView]) -> str:
    return ", ".join(sorted({target.worker for target in targets})) or "none is known"
