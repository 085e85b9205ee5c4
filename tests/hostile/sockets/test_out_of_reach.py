"""A worker before it loads its engine: whether it can reach a Scheduler on loopback."""

from typing import Any

import pytest

from cluster.messages.ids import Address
from cluster.serve_context import require_reachable_scheduler

LOOPBACK = Address("127.0.0.1", 1, "process")


class Broadcast:
    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers

    async def results_async(self, timeout_s: float, return_exceptions: bool) -> list[Any]:
        return self._answers


class SchedulerHandle:
    """Of a deployment whose replicas answer in turn with one of `answers`; the last is kept."""

    deployment_name = "Scheduler"

    def __init__(self, *answers: list[Any]) -> None:
        self._answers = list(answers)
        self.num_asked = 0

    def broadcast(self, method: str) -> Broadcast:
        assert method == "address"
        self.num_asked += 1
        return Broadcast(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])


async def test_worker_on_another_node_fails_and_names_the_key() -> None:
    scheduler: Any = SchedulerHandle([(LOOPBACK, "one")])
    with pytest.raises(
        RuntimeError, match=r"listens on 127\.0\.0\.1 of node one.*other.*set network\.host to an interface"
    ):
        await require_reachable_scheduler(scheduler, "127.0.0.1", "other")


async def test_worker_waits_for_a_scheduler_that_is_still_starting() -> None:
    scheduler: Any = SchedulerHandle([], [RuntimeError("is starting")], [(LOOPBACK, "one")])
    await require_reachable_scheduler(scheduler, "127.0.0.1", "one")
    assert scheduler.num_asked == 3


async def test_worker_that_is_not_on_loopback_asks_nobody() -> None:
    scheduler: Any = SchedulerHandle([])
    await require_reachable_scheduler(scheduler, "192.0.2.7", "one")
    assert scheduler.num_asked == 0
