"""What `baton status` and `baton why` ask a running service: its status, and its page of metrics."""

import argparse
import time

from cluster.cli.ask_service import ask, ask_text
from cluster.diagnosis.answer import RunningFacts
from cluster.diagnosis.figures import Figures
from cluster.messages.operations import ServiceStatus

STATUS_PATH, METRICS_PATH = "/baton/status", "/metrics"


def add_during_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--during",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="count what happens in the next SECONDS, instead of all since the processes have started",
    )


def running_facts(arguments: argparse.Namespace) -> RunningFacts | None:
    """Prints what is wrong and returns None if the service does not answer."""
    earlier = None
    if arguments.during > 0:
        earlier = ask_text(arguments, METRICS_PATH)
        if earlier is None:
            return None
        time.sleep(arguments.during)
    answer, page = ask(arguments, STATUS_PATH, ServiceStatus), None
    if answer is not None:
        page = ask_text(arguments, METRICS_PATH)
    if answer is None or page is None:
        return None
    figures = Figures.of(page)
    if earlier is None:
        return RunningFacts(status=answer[0], figures=figures)
    during = f"in {arguments.during:g} s"
    return RunningFacts(status=answer[0], figures=figures.since(Figures.of(earlier)), during=during)
