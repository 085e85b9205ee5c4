"""`baton probe`: how KV blocks travel in a running service."""

import argparse
import json

from cluster.cli.ask_service import add_service_options, ask
from kvtransfer.transport.link_table import LinkTable, render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows each pair of a prefill and a decode worker with the latency and bandwidth of its link, and the "
        "transport settings of each worker. Of each class of links, one is measured while its workers have no "
        "requests. Ends with 1 if the service does not answer or has no proved link."
    )
    add_service_options(parser)
    parser.add_argument("--json", action="store_true", help="print the answer of GET /baton/links")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    answer = ask(arguments, "/baton/links", LinkTable)
    if answer is None:
        return 1
    table, body = answer
    print(json.dumps(json.loads(body), indent=2) if arguments.json else render(table))
    return 0 if any(link.is_proved for link in table.links) else 1
