"""What a drill does to the service. Each fault is a context manager: entered, it has struck; left, it is over."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import psutil

from tests.drills.client import ANSWERED, CONNECTION_LOST, LEFT
from tests.drills.network import cut
from tests.drills.processes import Replica
from tests.drills.stage import Stage

HANG_S = 10.0
CUT_AT_MOST_S = 20.0


@dataclass(frozen=True)
class Fault:
    strike: Callable[[Stage], AbstractContextManager[None]]
    client_sees: str
    lasts_s: float = 0.0
    ends_with_answer: bool = False
    """Over as soon as the victim has its answer, and after `lasts_s` at the latest."""
    kills: Callable[[Stage], Replica | None] = lambda stage: None
    stops: Callable[[Stage], list[psutil.Process]] = lambda stage: []
    """The processes that it keeps stopped while it lasts."""


@contextmanager
def _client_leaves(stage: Stage) -> Iterator[None]:
    stage.victim.leave()
    yield


def _killed(find: Callable[[Stage], Replica]) -> Callable[[Stage], AbstractContextManager[None]]:
    @contextmanager
    def strike(stage: Stage) -> Iterator[None]:
        find(stage).process.kill()
        yield

    return strike


@contextmanager
def _prefill_hangs(stage: Stage) -> Iterator[None]:
    processes = _whole_prefill(stage)
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@contextmanager
def _path_cut(stage: Stage) -> Iterator[None]:
    with cut(stage.prefill.core):
        yield


def _whole_prefill(stage: Stage) -> list[psutil.Process]:
    return [stage.prefill.process, stage.prefill.core]


FAULTS = {
    "client leaves": Fault(_client_leaves, client_sees=LEFT),
    "prefill SIGKILL": Fault(
        _killed(lambda stage: stage.prefill), client_sees=ANSWERED, kills=lambda stage: stage.prefill
    ),
    "decode SIGKILL": Fault(
        _killed(lambda stage: stage.decode), client_sees=ANSWERED, kills=lambda stage: stage.decode
    ),
    "prefill SIGSTOP 10 s": Fault(_prefill_hangs, client_sees=ANSWERED, lasts_s=HANG_S, stops=_whole_prefill),
    "Scheduler SIGKILL": Fault(_killed(lambda stage: stage.scheduler), client_sees=ANSWERED),
    "ingress SIGKILL": Fault(_killed(lambda stage: stage.ingress), client_sees=CONNECTION_LOST),
    "transfer path cut": Fault(_path_cut, client_sees=ANSWERED, lasts_s=CUT_AT_MOST_S, ends_with_answer=True),
}
