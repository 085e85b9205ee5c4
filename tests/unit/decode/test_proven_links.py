import asyncio
import logging

import pytest

from cluster.errors import PrefillFailed
from cluster.messages.ids import WorkerId
from cluster.messages.transport import LinkSpeed
from decode import proven_links as links_module
from decode.proven_links import FORGET_AFTER_UPDATES, NUM_MEASUREMENTS, ProvenLinks
from tests.unit.factories import ids
from tests.unit.fake_ports import Gate, loop_rounds

SPEED = LinkSpeed(0.001, 1e9)


class FakeProbe:
    """Proves and measures every link, unless the worker is one of `failing` or `unmeasurable`."""

    def __init__(self) -> None:
        self.proofs: list[str] = []
        self.measurements: list[str] = []
        self.failing: set[str] = set()
        self.unmeasurable: set[str] = set()
        self.speed: LinkSpeed | None = SPEED
        self.gate, self.measure_gate = Gate(), Gate()

    async def prove(self, prefill: WorkerId) -> None:
        self.proofs.append(prefill)
        await self.gate.passed()
        if prefill in self.failing:
            raise PrefillFailed("nothing was pulled", prefill)

    async def measure(self, prefill: WorkerId) -> LinkSpeed | None:
        self.measurements.append(prefill)
        await self.measure_gate.passed()
        if prefill in self.unmeasurable:
            raise PrefillFailed("the prefill failed", prefill)
        return self.speed


@pytest.fixture
def probe() -> FakeProbe:
    return FakeProbe()


@pytest.fixture
def links(probe: FakeProbe) -> ProvenLinks:
    return ProvenLinks(probe)


async def update(links: ProvenLinks, live: str, times: int = 1) -> None:
    for _ in range(times):
        links.update(ids(live))
        await loop_rounds(8)


async def test_link_counts_once_it_is_proved_and_measured(links: links_module.ProvenLinks, probe: FakeProbe) -> None:
    probe.gate.hold()
    probe.measure_gate.hold()
    await update(links, "p0")
    assert (probe.proofs, probe.measurements, links.proved) == (["p0"], [], {})
    probe.gate.open()
    await loop_rounds(8)
    assert (probe.measurements, links.proved) == (["p0"], {})
    probe.measure_gate.open()
    await loop_rounds(8)
    assert links.proved == {"p0": SPEED}


async def test_link_is_proved_and_measured_once(links: links_module.ProvenLinks, probe: FakeProbe) -> None:
    await update(links, "p0", times=3)
    assert (probe.proofs, probe.measurements) == (["p0"], ["p0"])


async def test_link_that_is_being_proved_is_not_proved_a_second_time(
    links: links_module.ProvenLinks, probe: FakeProbe
) -> None:
    probe.gate.hold()
    await update(links, "p0")
    await update(links, "p0 p1")
    probe.gate.open()
    await loop_rounds(8)
    assert sorted(probe.proofs) == ["p0", "p1"]


async def gone_for_long(links: links_module.ProvenLinks, live: str = "") -> None:
    for _ in range(FORGET_AFTER_UPDATES):
        links.update(ids(live))
    await loop_rounds(8)


async def test_worker_that_is_gone_for_long_is_forgotten(links: links_module.ProvenLinks) -> None:
    await update(links, "p0 p1")
    await update(links, "p1")
    assert links.proved == {"p0": SPEED, "p1": SPEED}
    await gone_for_long(links, "p1")
    assert links.proved == {"p1": SPEED}


async def test_worker_that_was_not_heard_of_for_a_moment_need_not_prove_its_link_again(
    links: links_module.ProvenLinks, probe: FakeProbe
) -> None:
    for live in ("p0", "", "p0"):
        await update(links, live)
    assert (probe.proofs, links.proved) == (["p0"], {"p0": SPEED})


async def test_worker_that_goes_while_it_is_measured_is_forgotten_too(
    links: links_module.ProvenLinks, probe: FakeProbe
) -> None:
    probe.measure_gate.hold()
    await update(links, "p0")
    await update(links, "")
    probe.measure_gate.open()
    await gone_for_long(links)
    await gone_for_long(links)
    assert links.proved == {}


async def test_worker_that_comes_back_after_long_is_proved_again(
    links: links_module.ProvenLinks, probe: FakeProbe
) -> None:
    await update(links, "p0")
    await gone_for_long(links)
    await update(links, "p0")
    assert (probe.proofs, links.proved) == (["p0", "p0"], {"p0": SPEED})


async def test_link_that_is_suspected_is_proved_again_and_not_measured_again(
    links: links_module.ProvenLinks, probe: FakeProbe
) -> None:
    await update(links, "p0")
    links.suspect(WorkerId("p0"))
    assert links.proved == {}
    await update(links, "p0", times=2)
    assert (probe.proofs, probe.measurements, links.proved) == (["p0", "p0"], ["p0"], {"p0": SPEED})


async def test_link_that_is_suspected_while_it_is_measured_is_proved_again(
    links: links_module.ProvenLinks, probe: FakeProbe
) -> None:
    probe.measure_gate.hold()
    await update(links, "p0")
    links.suspect(WorkerId("p0"))
    probe.measure_gate.open()
    await loop_rounds(8)
    assert links.proved == {}
    await update(links, "p0")
    assert (probe.proofs, links.proved) == (["p0", "p0"], {"p0": SPEED})


async def test_link_that_failed_is_tried_at_the_next_update(
    links: links_module.ProvenLinks, probe: FakeProbe, caplog: pytest.LogCaptureFixture
) -> None:
    probe.failing = {"p0"}
    await update(links, "p0 p1")
    assert links.proved == {"p1": SPEED}
    assert "no link to prefill worker p0 yet: nothing was pulled" in caplog.text
    probe.failing = set()
    await update(links, "p0 p1")
    assert links.proved == {"p0": SPEED, "p1": SPEED}


async def test_link_that_fails_for_long_or_is_suspected_often_is_one_line_of_the_log(
    links: links_module.ProvenLinks, probe: FakeProbe, caplog: pytest.LogCaptureFixture
) -> None:
    await update(links, "p0")
    links.suspect(WorkerId("p0"))
    links.suspect(WorkerId("p0"))
    probe.failing = {"p0"}
    await update(links, "p0", times=5)
    probe.failing = set()
    await update(links, "p0")
    probe.failing = {"p0"}
    links.suspect(WorkerId("p0"))
    await update(links, "p0", times=5)
    one_time = ["no requests from prefill worker p0 until", "no link to prefill worker p0 yet: nothing was"]
    assert [begin in record.message for begin, record in zip(one_time * 2, caplog.records, strict=True)] == [True] * 4


async def test_proof_that_hangs_is_given_up_and_tried_again(
    links: links_module.ProvenLinks, probe: FakeProbe, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "PROOF_TIMEOUT_S", 0.01)
    probe.gate.hold()
    with caplog.at_level(logging.WARNING):
        links.update(ids("p0"))
        await asyncio.sleep(0.05)
    assert "no link to prefill worker p0 yet: it took too long" in caplog.text
    probe.gate.open()
    await update(links, "p0")
    assert (probe.proofs, links.proved) == (["p0", "p0"], {"p0": SPEED})


@pytest.mark.parametrize("how", ["fails", "cannot be told"])
async def test_link_that_cannot_be_measured_counts_and_is_measured_again(
    links: links_module.ProvenLinks, probe: FakeProbe, how: str
) -> None:
    probe.unmeasurable, probe.speed = ({"p0"}, SPEED) if how == "fails" else (set(), None)
    await update(links, "p0")
    assert links.proved == {"p0": None}
    probe.unmeasurable, probe.speed = set(), SPEED
    await update(links, "p0")
    assert (probe.proofs, links.proved) == (["p0"], {"p0": SPEED})


async def test_link_that_can_never_be_measured_is_left_alone_in_the_end(
    links: links_module.ProvenLinks, probe: FakeProbe
) -> None:
    probe.speed = None
    await update(links, "p0", times=10)
    assert (links.proved, len(probe.measurements)) == ({"p0": None}, NUM_MEASUREMENTS)


async def test_links_are_proved_side_by_side_and_measured_one_by_one(
    links: links_module.ProvenLinks, probe: FakeProbe
) -> None:
    probe.gate.hold()
    probe.measure_gate.hold()
    await update(links, "p0 p1 p2")
    assert len(probe.proofs) == 3
    probe.gate.open()
    await loop_rounds(8)
    assert len(probe.measurements) == 1
    probe.measure_gate.open()
    await loop_rounds(20)
    assert sorted(probe.measurements) == ["p0", "p1", "p2"]
    assert links.proved.keys() == ids("p0 p1 p2")
