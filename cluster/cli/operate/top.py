"""`baton top`: the running cluster and its last requests in a terminal, drawn anew each second."""

import argparse
import sys
import time

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from api.web.live_document import FORM, LiveDocument
from cluster.cli.ask_service import add_service_options, ask
from cluster.cli.operate.top_screen import Screen, console_of, screen_of

LIVE_PATH = "/baton/live"
EVERY_S, LEAST_EVERY_S, MOST_EVERY_S = 1.0, 0.2, 3600.0
"""Time between two looks, in seconds: the default, the least and the most. The service makes a new document once per
second: looking more often shows the same again. Longer shows changes later.
"""
MOST_MISSED = 30
"""Looks in a row without an answer after which the command ends. More waits longer for a service that is gone; fewer
ends during an update of the service.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows what the page of the admin port shows, in a terminal: pools, workers, links that hand "
        "nothing over, goodput and latencies by SLO class, and for each of the last requests where its time went. The "
        "requests are those of the ingress replica that answers. Ctrl-C ends it. Where the output is no terminal, it "
        "is printed once. Ends with 0, or with 2 if the service does not answer."
    )
    add_service_options(parser)
    parser.add_argument("--once", action="store_true", help="print it once")
    parser.add_argument(
        "--every", type=float, default=EVERY_S, metavar="SECONDS", help="time between two looks (default: 1)"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    first = _look(arguments, is_quiet=False)
    if first is None:
        return 2
    console = console_of()
    if arguments.once or not sys.stdout.isatty():
        console.print(screen_of(first, Screen(lines=console.size.height, columns=console.size.width)))
        return 0
    try:
        return _watch(arguments, first)
    except KeyboardInterrupt:
        return 0


def _watch(arguments: argparse.Namespace, first: LiveDocument) -> int:
    console = console_of()
    shown, num_missed = first, 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while num_missed < MOST_MISSED:
            screen: RenderableType = screen_of(shown, Screen(lines=console.size.height, columns=console.size.width))
            if num_missed:
                screen = Group(Text(f"No answer to the last {num_missed} looks. This was known before:", "red"), screen)
            live.update(screen, refresh=True)
            time.sleep(min(MOST_EVERY_S, max(LEAST_EVERY_S, arguments.every)))
            found = _look(arguments, is_quiet=True)
            shown, num_missed = (shown, num_missed + 1) if found is None else (found, 0)
    _look(arguments, is_quiet=False)
    return 2


def _look(arguments: argparse.Namespace, *, is_quiet: bool) -> LiveDocument | None:
    """Prints what is wrong, unless `is_quiet`, and returns None if there is no document that this version knows."""
    answer = ask(arguments, LIVE_PATH, LiveDocument, is_quiet=is_quiet)
    if answer is None:
        return None
    document, _ = answer
    if document.form != FORM:
        if not is_quiet:
            print(
                f"baton: the service has another version of this document ({document.form}, not {FORM}): use the baton "
                "command of its version",
                file=sys.stderr,
            )
        return None
    return document
