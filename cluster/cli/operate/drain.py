"""`baton drain`: has a worker of a running service get no new requests."""

import argparse
import sys
import time
from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from cluster.cli.ask_service import add_service_options, ask
from cluster.cli.operate.running import STATUS_PATH
from cluster.cli.operate.visible import visible
from cluster.messages.operations import ServiceStatus, WorkerStatus

POLL_S = 1.0
"""Time between two looks at a worker that is emptied, in seconds. Shorter asks the Scheduler more often; longer tells
later that the worker is empty.
"""
MOST_SILENT = 30
"""Looks in a row that tell nothing of the worker after which the command gives up. More waits longer for a service
that is gone; fewer gives up while the Scheduler or the ingress replica is replaced, which takes HEARD_S and more.
"""
HEARD_S = 15.0
"""Age of a Scheduler from which it has heard of all workers, in seconds. They find a new one and report to it within
SCHEDULER_TIMEOUT_S and some reports. Shorter calls a worker gone that has not reported yet; longer tells later that it
is gone.
"""


class _Changed(msgspec.Struct):
    """The answer of POST /admin/workers/{worker}."""

    changed: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The Scheduler places a request on a draining worker only if no other worker can take it. "
        "What runs there finishes, and its leases are redeemed or expire. The drain outlives the Scheduler, is in the "
        "log of changes (GET /admin/changes), and ends with --undo or with the worker. The last worker of a pool that "
        "does not drain is refused without --force. Ends with 1 if the service refuses or does not answer."
    )
    parser.add_argument("worker", metavar="WORKER", help="id of the worker, or how the id of one worker alone begins")
    parser.add_argument("--undo", action="store_true", help="the worker gets requests again")
    parser.add_argument("--force", action="store_true", help="drain also the last worker of its pool")
    parser.add_argument(
        "--wait", action="store_true", help="wait until the worker is empty. Ctrl-C ends the wait and not the drain"
    )
    add_service_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    answer = ask(arguments, STATUS_PATH, ServiceStatus)
    if answer is None:
        return 1
    worker = named(workers_of(answer[0]), arguments.worker)
    body = {"draining": not arguments.undo, "force": arguments.force}
    changed = ask(arguments, f"/admin/workers/{quote(worker, safe='')}", _Changed, body)
    if changed is None:
        return 1
    already = "" if changed[0].changed else " already"
    if arguments.undo:
        print(visible(f"worker {worker} gets requests{' again' if changed[0].changed else already}"))
        return 0
    print(visible(f"worker {worker} drains{already}: it gets only what no other worker takes"), flush=True)
    return _wait(arguments, worker, _found(answer[0], worker)) if arguments.wait else _tell(answer[0], worker)


def workers_of(status: ServiceStatus) -> list[WorkerStatus]:
    return [worker for scheduler in status.schedulers for worker in scheduler.workers]


def named(workers: Sequence[WorkerStatus], name: str) -> str:
    """The id of the worker that a user means. The name itself where it means none, or several: the service says so."""
    meant = [worker.worker for worker in workers if worker.worker.startswith(name)]
    return meant[0] if len(meant) == 1 and name else name


def progress(worker: WorkerStatus | None) -> str:
    """How far a worker is. None: it is gone."""
    if worker is None:
        return "it is gone"
    if worker.is_empty:
        return "it is empty"
    return f"{worker.num_open} requests and {worker.num_leases} leases are left"


def _tell(status: ServiceStatus, worker: str) -> int:
    found = _found(status, worker)
    far = progress(found) if found or is_gone(status, None) else "the Schedulers that answer do not know it yet"
    print(f"{far} (`baton status` shows it, and --wait waits for its end)")
    return 0


def _found(status: ServiceStatus, worker: str) -> WorkerStatus | None:
    return next((one for one in workers_of(status) if one.worker == worker), None)


def is_gone(status: ServiceStatus, last: WorkerStatus | None) -> bool:
    """Whether a worker that the status does not have is gone. `last`: what was known of it, None if nothing was.

    The Scheduler of its cell must have had the time to hear of it. Those of all cells must answer: one that is away may
    have the worker.
    """
    if len(status.schedulers) < max(1, len(status.cells)):
        return False
    return all(one.up_s > HEARD_S for one in status.schedulers if last is None or one.cell == last.cell)


def _wait(arguments: argparse.Namespace, worker: str, last: WorkerStatus | None) -> int:
    """Returns the exit status. `last`: what is known of the worker."""
    shown, num_silent = None, 0
    try:
        while True:
            time.sleep(POLL_S)  # the service may give an answer again that is younger than that
            answer = ask(arguments, STATUS_PATH, ServiceStatus, is_quiet=num_silent < MOST_SILENT)
            found = None if answer is None else _found(answer[0], worker)
            if answer is None or (found is None and not is_gone(answer[0], last)):
                num_silent += 1
                if num_silent > MOST_SILENT:
                    print("baton: the service does not tell of the worker any more; it drains", file=sys.stderr)
                    return 1
                continue
            num_silent, last = 0, found or last
            if (line := progress(found)) != shown:
                print(line, flush=True)
                shown = line
            if found is None or found.is_empty:
                return 0
    except KeyboardInterrupt:
        print(f"\nthe wait has ended; worker {worker} still drains (baton drain {worker} --undo)")
        return 0
