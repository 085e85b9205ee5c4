import asyncio
import logging

import pytest
from factories import ids
from fake_ports import Gate, turns

from cluster.errors import PrefillFailed
from cluster.types import WorkerId
from kvtransfer.links import Links


class Prover:
    """Proves every link, unless the worker is one of `failing`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failing: set[str] = set()
        self.gate = Gate()

    async def prove(self, worker: WorkerId) -> None:
        self.asked.append(worker)
        await self.gate.passed()
        if worker in self.failing:
            raise PrefillFailed("nothing was pulled", worker)


@pytest.fixture
def prover() -> Prover:
    return Prover()


@pytest.fixture
def links(prover) -> Links:
    return Links(prover.prove)


async def test_link_counts_once_it_is_proved(links, prover):
    prover.gate.hold()
    links.update(ids("p0"))
    await prover.gate.reached.wait()
    assert links.connected == set()
    prover.gate.open()
    await turns(3)
    assert links.connected == {"p0"}


async def test_link_is_proved_once(links, prover):
    for _ in range(3):
        links.update(ids("p0"))
        await turns(3)
    assert prover.asked == ["p0"]


async def test_link_that_is_being_proved_is_not_proved_a_second_time(links, prover):
    prover.gate.hold()
    links.update(ids("p0"))
    await prover.gate.reached.wait()
    links.update(ids("p0 p1"))
    prover.gate.open()
    await turns(3)
    assert sorted(prover.asked) == ["p0", "p1"]


async def test_worker_that_is_gone_is_forgotten(links):
    links.update(ids("p0 p1"))
    await turns(3)
    links.update(ids("p1"))
    assert links.connected == {"p1"}


async def test_worker_that_comes_back_is_proved_again(links, prover):
    for live in ("p0", "", "p0"):
        links.update(ids(live))
        await turns(3)
    assert (prover.asked, links.connected) == (["p0", "p0"], {"p0"})


async def test_link_that_failed_is_tried_at_the_next_update(links, prover, caplog):
    prover.failing = {"p0"}
    with caplog.at_level(logging.WARNING):
        links.update(ids("p0 p1"))
        await turns(3)
    assert links.connected == {"p1"}
    assert "no link to prefill worker p0 yet: nothing was pulled" in caplog.text
    prover.failing = set()
    links.update(ids("p0 p1"))
    await turns(3)
    assert links.connected == {"p0", "p1"}


async def test_links_are_proved_side_by_side(links, prover):
    prover.gate.hold()
    links.update(ids("p0 p1 p2"))
    await asyncio.wait_for(prover.gate.reached.wait(), timeout=1)
    await turns(1)
    assert len(prover.asked) == 3
    prover.gate.open()
    await turns(3)
