"""`baton why`: answers about a running service, with the numbers that show them and what to do.

It is no part of `baton doctor`, which checks a machine before anything runs: the two ask different things of different
places, and end with different statuses.
"""

import argparse
import json
from collections.abc import Iterator

import msgspec

from cluster.cli.ask_service import add_service_options
from cluster.cli.operate.running import add_during_option, running_facts
from cluster.cli.operate.visible import visible
from cluster.diagnosis.answer import Answer, Weight
from cluster.diagnosis.rules import answers

_NOTHING = "No rule has found anything: the service serves, and there is nothing to explain."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Explains why a pool is idle, why requests are not handed over, which links are not proved, which "
        "tier never hits, why requests are refused, and why a worker or a cell gets nothing. Each answer has what "
        "was found, with numbers, and what to do. Faults come first. Ends with 0, or with 2 if the service does not "
        "answer."
    )
    add_service_options(parser)
    add_during_option(parser)
    parser.add_argument("--faults", action="store_true", help="show faults only")
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    facts = running_facts(arguments)
    if facts is None:
        return 2
    found = [one for one in answers(facts) if one.weight is Weight.FAULT or not arguments.faults]
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        print("\n\n".join(_text(one) for one in found) or _NOTHING)
    return 0


def _text(answer: Answer) -> str:
    return "\n".join(map(visible, _lines(answer)))


def _lines(answer: Answer) -> Iterator[str]:
    yield f"[{answer.weight}] {answer.question}"
    yield f"  because  {answer.answer}"
    for number, line in enumerate(answer.evidence):
        yield f"  {'found' if number == 0 else '':7}  {line}"
    if answer.todo:
        yield f"  to do    {answer.todo}"
