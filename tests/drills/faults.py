"""What a drill does to the service. Each fault is a context manager: entered, it has struck; left, it is over."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import psutil

from tests.drills.client import ANSWERED, CONNECTION_LOST, LEFT
from tests.drills.network import cut
from tests.drills.participants import Participants
from tests.drills.processes import Replica

HANG_S = 10.0
CUT_AT_MOST_S = 20.0


@dataclass(frozen=True)
class Fault:
    strike: Callable[[Participants], AbstractContextManager[None]]
    client_sees: str
    lasts_s: float = 0.0
    ends_with_answer: bool = False
    """Over as soon as the victim has its answer, and after `lasts_s` at the latest."""
    kills: Callable[[Participants], Replica | None] = lambda participants: None
    stops: Callable[[Participants], list[psutil.Process]] = lambda participants: []
    """The processes that it keeps stopped while it lasts."""


@contextmanager
def _client_leaves(participants: Participants) -> Iterator[None]:
    participants.victim.leave()
    yield


def _killed(find: Callable[[Participants], Replica]) -> Callable[[Participants], AbstractContextManager[None]]:
    @contextmanager
    def strike(participants: Participants) -> Iterator[None]:
        find(participants).process.kill()
        yield

    return strike


@contextmanager
def _prefill_hangs(participants: Participants) -> Iterator[None]:
    processes = _whole_prefill(participants)
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@contextmanager
def _path_cut(participants: Participants) -> Iterator[None]:
    with cut(participants.prefill.core):
        yield


def _whole_prefill(participants: Participants) -> list[psutil.Process]:
    return [participants.prefill.process, participants.prefill.core]


FAULTS = {
    "client leaves": Fault(_client_leaves, client_sees=LEFT),
    "prefill SIGKILL": Fault(
        _killed(lambda participants: participants.prefill),
        client_sees=ANSWERED,
        kills=lambda participants: participants.prefill,
    ),
    "decode SIGKILL": Fault(
        _killed(lambda participants: participants.decode),
        client_sees=ANSWERED,
        kills=lambda participants: participants.decode,
    ),
    "prefill SIGSTOP 10 s": Fault(_prefill_hangs, client_sees=ANSWERED, lasts_s=HANG_S, stops=_whole_prefill),
    "Scheduler SIGKILL": Fault(_killed(lambda participants: participants.scheduler), client_sees=ANSWERED),
    "ingress SIGKILL": Fault(_killed(lambda participants: participants.ingress), client_sees=CONNECTION_LOST),
    "transfer path cut": Fault(_path_cut, client_sees=ANSWERED, lasts_s=CUT_AT_MOST_S, ends_with_answer=True),
}
