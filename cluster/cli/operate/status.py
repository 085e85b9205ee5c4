"""`baton status`: a running service on one screen."""

import argparse
import json

import msgspec

from cluster.cli.ask_service import add_service_options
from cluster.cli.operate.running import add_during_option, running_facts
from cluster.cli.operate.status_text import status_text
from cluster.diagnosis.health import Health, health_of

EXIT_STATUS = {Health.SERVING: 0, Health.DEGRADED: 1, Health.NOT_SERVING: 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows whether a service serves, its Scheduler, goodput, stores and cells, and each worker with "
        "its state, requests, KV memory and links. Ends with 0 if the service serves, with 1 if it serves and "
        "something is wrong, and with 2 if it does not serve or does not answer."
    )
    add_service_options(parser)
    add_during_option(parser)
    parser.add_argument("--json", action="store_true", help="print the health and the answer of GET /baton/status")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    facts = running_facts(arguments)
    if facts is None:
        return EXIT_STATUS[Health.NOT_SERVING]
    health, problems = health_of(facts.status)
    if arguments.json:
        status = msgspec.to_builtins(facts.status)
        print(json.dumps({"health": health, "problems": problems, **status}, indent=2))
    else:
        print(status_text(facts, health, problems))
    return EXIT_STATUS[health]
