import pytest

from cluster.clients.known_workers import KnownWorkers
from cluster.messages.ids import Address, Pool, WorkerId
from cluster.messages.views import RosterChange, RosterEntry


def a_roster(num_prefill: int, num_decode: int, num_links: int) -> RosterChange:
    names = [(Pool.PREFILL, f"p{n}") for n in range(num_prefill)] + [(Pool.DECODE, f"d{n}") for n in range(num_decode)]
    joined = [RosterEntry(WorkerId(name), pool, 8, Address("h", 1, "x")) for pool, name in names]
    return RosterChange(since=0, version=1, joined=joined, left=[], num_links=num_links)


@pytest.mark.parametrize(
    ("may_lack", "num_prefill", "num_decode", "num_links", "is_ready"),
    [
        (None, 1, 1, 1, True),
        (None, 1, 1, 0, False),
        (None, 0, 2, 0, False),
        (Pool.PREFILL, 0, 2, 0, True),
        (Pool.PREFILL, 1, 1, 0, False),  # a link will be proved soon
        (Pool.PREFILL, 1, 0, 0, False),
        (Pool.DECODE, 1, 0, 0, True),
        (Pool.PREFILL, 0, 0, 0, False),
    ],
)
def test_cluster_is_ready_without_the_pool_that_may_be_empty(
    may_lack: Pool | None, num_prefill: int, num_decode: int, num_links: int, *, is_ready: bool
) -> None:
    known = KnownWorkers(may_lack)
    known.take(a_roster(num_prefill, num_decode, num_links))
    assert known.readiness.is_ready is is_ready
