"""PostgreSQL that is away for a while."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil

from tests.real_cluster.service import Service


@contextmanager
def postgres_away(service: Service, fault: signal.Signals) -> Iterator[None]:
    """Killed processes are replaced by the service; stopped ones go on at the end."""
    with ExitStack() as healed:
        for process in service.postgres():
            process.send_signal(fault)
            healed.callback(_go_on, process)
        yield


def _go_on(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
