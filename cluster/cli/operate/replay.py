"""`baton replay`: makes the Scheduler's decisions again from its log, explains one of them, or tries others."""

import argparse
import json
import os
import sys
from datetime import datetime
from pathlib import Path

import msgspec

from cluster import compiled
from cluster.cli.operate.visible import visible
from cluster.compiled import SWITCH
from cluster.simulation.baselines import BASELINES
from router.placement.candidates import Policy
from router.placement.goodput import goodput
from router.recording.frames import DamagedLog
from router.recording.records import LogHeader
from router.replay.comparison import Comparison
from router.replay.explainer import Explainer
from router.replay.log_reader import LogFile, NoLog, log_files
from router.replay.replay import Replay
from router.replay.stepper import DecisionKind
from router.replay.story import story
from router.replay.what_if import BadChange, Change, Changes, WhatIf, parse_changes
from router.state import RouterState

DIFFERS, FAILED = 1, 2
"""Exit status: decisions differ, or the request was not found; nothing could be replayed."""
_POLICY = "policy="
_EPILOG = f"""\
LOG is a folder of scheduler.stimulus_log (docs/replay.md), or one of its files. Times are like 2026-01-31T02:10 or
02:10 (today), of this machine's time zone unless they name another one.

policies to try: {", ".join(BASELINES)}

examples:
  baton replay /var/log/baton/stimuli --from 02:00 --to 02:30
  baton replay /var/log/baton/stimuli --explain chatcmpl-7f3a
  baton replay /var/log/baton/stimuli --what-if slo.standard.ttft_s=2 --what-if policy=lmetric
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads the stimulus log of a Scheduler and makes its decisions again with the code of this "
        "version. Without --explain and --what-if, says how many decisions are the same, and which is the first that "
        "is not. Ends with 1 if one differs, and with 2 if nothing can be replayed."
    )
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("log", type=Path, metavar="LOG", help="folder or file of the log")
    parser.add_argument("--from", dest="since", type=_time, metavar="T", help="compare from this time on")
    parser.add_argument("--to", dest="until", type=_time, metavar="T", help="replay up to this time")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--explain", metavar="ID", help="tell the story of one request, by its session's id or its x-request-id"
    )
    what.add_argument(
        "--what-if",
        action="append",
        metavar="KEY=VALUE",
        help="decide with another config: slo.CLASS.KEY, scheduler.max_indexed_blocks, or policy; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if compiled.is_in_use():  # compiled classes cannot be filled from a snapshot
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, SWITCH: "1"})
    try:
        files, wrong = log_files(arguments.log)
        for line in wrong:
            _complain(f"not read: {line}")
        if arguments.explain is not None:
            return _explain(files, arguments)
        if arguments.what_if:
            return _what_if(files, arguments)
        return _compare(files, arguments)
    except (NoLog, DamagedLog, BadChange, OSError) as error:
        _complain(f"{error}")
        return FAILED


def _compare(files: list[LogFile], arguments: argparse.Namespace) -> int:
    comparison = Comparison(arguments.since)
    Replay(files, lambda header: _state(header, goodput), comparison).run(arguments.since, arguments.until)
    comparison.end()
    _about(comparison.headers, comparison.notes)
    num_equal, num_different = comparison.num_equal, comparison.num_different
    if arguments.json:
        _print_json(
            {
                "equal": num_equal,
                "different": num_different,
                "inexact": comparison.num_inexact,
                "failed_calls": comparison.num_failed,
                "first_difference": comparison.first,
                "notes": comparison.notes,
            }
        )
    else:
        for kind in DecisionKind:
            total = num_equal[kind] + num_different[kind]
            if total:
                share = 100 * num_equal[kind] / total
                print(f"{_NAMES[kind]}: {num_equal[kind]} of {total} are the same ({share:.2f} %)")
        if comparison.num_inexact:
            print(f"{comparison.num_inexact} decisions are not compared, because records before them are missing")
        if comparison.num_failed:
            print(f"{comparison.num_failed} calls of the Scheduler fail")
        if (first := comparison.first) is not None:
            print(visible(f"The first that differs is of {first.subject}, at {_shown(first.at)}:"))
            print(visible(f"  then: {first.then}"), visible(f"  now:  {first.again}"), sep="\n")
    if not (num_equal.total() or num_different.total() or comparison.num_inexact):
        _complain("the log has no decisions in this time")
        return FAILED
    return DIFFERS if num_different.total() else 0


def _explain(files: list[LogFile], arguments: argparse.Namespace) -> int:
    explainer = Explainer(arguments.explain, goodput)
    Replay(files, lambda header: _state(header, explainer.policy), explainer).run(arguments.since, arguments.until)
    _about(explainer.headers, explainer.notes)
    if not explainer.found:
        _complain(f"no request {arguments.explain} is in the log of this time")
        return DIFFERS
    if arguments.json:
        _print_json(list(explainer.found.values()))
        return 0
    for number, (request_id, facts) in enumerate(explainer.found.items()):
        header = explainer.header_of[request_id]
        lines = story(facts, lambda at, header=header: _shown(header.wall_time(at)))  # type: ignore[misc]  # its default
        print("\n".join(map(visible, [*([""] if number else []), *lines])))
    return 0


def _what_if(files: list[LogFile], arguments: argparse.Namespace) -> int:
    policies = [text.removeprefix(_POLICY) for text in arguments.what_if if text.startswith(_POLICY)]
    changes = parse_changes([text for text in arguments.what_if if not text.startswith(_POLICY)])
    policy = _policy(policies[-1]) if policies else goodput
    changes.slo_of(files[0].header)
    what_if = WhatIf(arguments.since)
    Replay(files, lambda header: _changed_state(header, changes, policy), what_if).run(arguments.since, arguments.until)
    what_if.end()
    _about(what_if.headers, what_if.notes)
    total = what_if.changes.total()
    if arguments.json:
        _print_json({"requests": total, "changes": what_if.changes, "waited": what_if.num_waited})
    else:
        print(f"With {', '.join(arguments.what_if)}, of {total} placements that were asked for:")
        for change in Change:
            number = what_if.changes[change]
            print(f"  {number:8}  {100 * number / max(1, total):5.1f} %  {change}")
        then, now = what_if.num_waited
        print(f"{then} had to wait then, and {now} would have to wait.")
        print("What the workers would have done is not simulated: see docs/replay.md.")
    return 0 if total else FAILED


def _state(header: LogHeader, policy: Policy) -> RouterState:
    return RouterState(
        header.slo,
        policy,
        admits_all=header.admits_all,
        preempts=header.preempts,
        max_indexed_blocks=header.max_indexed_blocks,
    )


def _changed_state(header: LogHeader, changes: Changes, policy: Policy) -> RouterState:
    most = changes.max_indexed_blocks
    if most is not None and header.number > 1:
        raise BadChange("scheduler.max_indexed_blocks can be tried from a Scheduler's start only, not from a snapshot")
    return RouterState(
        changes.slo_of(header),
        policy,
        admits_all=header.admits_all,
        preempts=header.preempts,
        max_indexed_blocks=header.max_indexed_blocks if most is None else most,
    )


def _policy(name: str) -> Policy:
    if name not in BASELINES:
        raise BadChange(f"{name!r} is none of the policies {', '.join(BASELINES)}")
    return BASELINES[name].make(0)


def _about(headers: list[LogHeader], notes: list[str]) -> None:
    """Say on standard error what a replay was of, and what is missing."""
    for note in notes:
        _complain(note)
    own = compiled.folder().name
    if others := sum(header.code != own for header in headers):
        _complain(f"{others} of {len(headers)} files are of another version of the Scheduler: it may decide otherwise")


def _complain(wrong: str) -> None:
    print("\n  ".join(visible(line) for line in f"baton: {wrong}".split("\n")), file=sys.stderr)


def _print_json(result: object) -> None:
    print(json.dumps(json.loads(msgspec.json.encode(result)), indent=2))


def _shown(wall_s: float) -> str:
    """Raises DamagedLog for a time that is none."""
    try:
        return datetime.fromtimestamp(wall_s).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError) as error:
        raise DamagedLog(f"the log is damaged: it has the time {wall_s!r}") from error


def _time(text: str) -> float:
    today = datetime.now().astimezone()
    try:
        if "T" not in text and "-" not in text:
            text = f"{today.date().isoformat()}T{text}"
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 2026-01-31T02:10") from None


_NAMES = {DecisionKind.PLACEMENT: "placements", DecisionKind.PAUSE: "pauses", DecisionKind.REPLY: "replies to workers"}
