"""`baton cells`: the cells of a running service, and whether they take new requests."""

import argparse
import json
import os
import sys

from cluster.cli.ask_service import add_service_options, ask
from cluster.messages.ids import CellName
from cluster.messages.views import CellState, CellsView, CellView

HEADER = ("cell", "state", "prefill workers", "decode workers", "connected pairs", "open", "queued")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows the cells of a service: the state of each, its workers, the pairs of them that can hand "
        "over, and the requests that are open or wait in it. `drain NAME` has all ingress replicas send no new "
        "requests to a cell while an open cell can take them, and `open NAME` ends that. "
        "Both are written into Ray's key-value store, so they need to "
        "reach the Ray of the service. Ends with 1 if the service or Ray does not answer, or if the cell cannot be "
        "drained."
    )
    parser.add_argument("action", nargs="?", choices=["drain", "open"], help="what to do with a cell")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the cell")
    add_service_options(parser)
    parser.add_argument("--ray", metavar="HOST:PORT", help="address of Ray (default: RAY_ADDRESS, or this machine's)")
    parser.add_argument("--json", action="store_true", help="print the answer of GET /baton/cells")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.action is not None and arguments.name is None:
        print(f"baton: name the cell: baton cells {arguments.action} NAME", file=sys.stderr)
        return 2
    answer = ask(arguments, "/baton/cells", CellsView)
    if answer is None:
        return 1
    view, body = answer
    if arguments.action is None:
        print(json.dumps(json.loads(body), indent=2) if arguments.json else table(view))
        return 0
    try:
        if why := refusal(view, arguments.name, drains=arguments.action == "drain"):
            raise ValueError(why)
        _write(view, CellName(arguments.name), arguments)
    except (OSError, ValueError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return 1
    print(f"cell {arguments.name} {_done(arguments)}: all ingress replicas follow in some seconds")
    return 0


def table(view: CellsView) -> str:
    """For a terminal."""
    rows = [HEADER, *(_row(cell) for cell in view.cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def refusal(view: CellsView, name: str, *, drains: bool) -> str | None:
    """Why the cell cannot be drained or opened. None if it can."""
    names = [cell.name for cell in view.cells]
    if name not in names:
        return f"there is no cell {name!r}: the service has {', '.join(names)}"
    if len(names) == 1:
        return "the service has only one cell, which cannot be drained or opened"
    if drains and not set(_open_cells(view)) - {name}:
        return f"no other cell than {name} is open: it would get all requests all the same"
    return None


def _open_cells(view: CellsView) -> list[CellName]:
    return [cell.name for cell in view.cells if cell.state is CellState.OPEN]


def _row(cell: CellView) -> tuple[str, ...]:
    counts = (cell.num_prefill, cell.num_decode, cell.num_links, cell.num_open, cell.num_waiting)
    return (cell.name, cell.state, *map(str, counts))


def _write(view: CellsView, cell: CellName, arguments: argparse.Namespace) -> None:
    """Raises OSError and ValueError."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what Ray logs is in the error
    from cluster.cli.ray_store import cell_states_in  # it loads Ray, which takes longer than all other commands

    states = cell_states_in(arguments.ray, view.application, cell)
    if arguments.action == "drain":
        states.drain_unless_last(cell, _open_cells(view))
    else:
        states.open(cell)


def _done(arguments: argparse.Namespace) -> str:
    return "takes no new requests" if arguments.action == "drain" else "takes new requests"
