"""A worker before it loads its engine: whether it can reach a Scheduler on loopback."""

import pytest

from cluster.messages.ids import Address
from cluster.rpc.connection import ConnectionLost
from cluster.scheduler_registry import SchedulerRecord
from cluster.serve_context import require_reachable, require_reachable_scheduler
from tests.unit.factories import a_scheduler

LOOPBACK = Address("127.0.0.1", 1, "process")


class Registry:
    """Finds no Scheduler for a number of times, and then one on the node "n0"."""

    def __init__(self, own_node: str, num_missing: int = 0) -> None:
        self._own_node = own_node
        self._num_missing = num_missing
        self.num_asked = 0

    async def find(self) -> SchedulerRecord:
        self.num_asked += 1
        if self.num_asked <= self._num_missing:
            raise ConnectionLost("there is no Scheduler")
        found = a_scheduler(LOOPBACK)
        require_reachable(found.address, found.node, self._own_node)
        return found


async def test_worker_on_another_node_fails_and_names_the_key() -> None:
    with pytest.raises(
        RuntimeError, match=r"listens on 127\.0\.0\.1 of node n0.*other.*set network\.host to an interface"
    ):
        await require_reachable_scheduler(Registry("other").find, "127.0.0.1")


async def test_worker_waits_for_a_scheduler_that_is_still_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.serve_context._SCHEDULER_INTERVAL_S", 0.01)
    registry = Registry("n0", num_missing=2)
    await require_reachable_scheduler(registry.find, "127.0.0.1")
    assert registry.num_asked == 3


async def test_worker_that_is_not_on_loopback_asks_nobody() -> None:
    registry = Registry("other")
    await require_reachable_scheduler(registry.find, "192.0.2.7")
    assert registry.num_asked == 0
