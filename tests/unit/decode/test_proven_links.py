import asyncio
import logging

import pytest

from cluster.errors import PrefillFailed
from cluster.messages.ids import WorkerId
from cluster.messages.reports import LinkOrder
from cluster.messages.transport import LinkSpeed
from decode import proven_links as links_module
from decode.proven_links import MOST_DOUBTFUL, ProvenLinks
from tests.unit.fake_ports import Gate, loop_rounds

P0, P1 = WorkerId("p0"), WorkerId("p1")
SPEED, LATER_SPEED = LinkSpeed(0.001, 1e9), LinkSpeed(0.002, 1e9)


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


async def obey(links: ProvenLinks, prefill: str, *, measures: bool = False, times: int = 1) -> None:
    for _ in range(times):
        links.obey(LinkOrder(WorkerId(prefill), measures))
        await loop_rounds(8)


async def test_nothing_is_probed_without_an_order(links: ProvenLinks, probe: FakeProbe) -> None:
    links.obey(None)
    await loop_rounds(8)
    assert (probe.proofs, links.proved, links.probing) == ([], {}, None)


async def test_link_counts_once_it_is_proved(links: ProvenLinks, probe: FakeProbe) -> None:
    probe.gate.hold()
    await obey(links, "p0")
    assert (links.probing, links.proved) == (P0, {})
    probe.gate.open()
    await loop_rounds(8)
    assert (probe.proofs, probe.measurements) == (["p0"], [])
    assert (links.probing, links.proved) == (None, {P0: None})


async def test_link_is_measured_only_if_the_scheduler_asks_and_counts_meanwhile(
    links: ProvenLinks, probe: FakeProbe
) -> None:
    probe.measure_gate.hold()
    await obey(links, "p0", measures=True)
    assert (links.probing, links.proved) == (P0, {P0: None})
    probe.measure_gate.open()
    await loop_rounds(8)
    assert (links.probing, links.proved) == (None, {P0: SPEED})


async def test_proved_link_is_measured_without_another_proof(links: ProvenLinks, probe: FakeProbe) -> None:
    await obey(links, "p0", measures=True)
    probe.speed = LATER_SPEED
    await obey(links, "p0", measures=True)
    assert (probe.proofs, probe.measurements, links.proved) == (["p0"], ["p0", "p0"], {P0: LATER_SPEED})


async def test_one_link_is_probed_at_a_time(links: ProvenLinks, probe: FakeProbe) -> None:
    probe.gate.hold()
    await obey(links, "p0")
    await obey(links, "p1")
    assert (probe.proofs, links.probing) == (["p0"], P0)
    probe.gate.open()
    await loop_rounds(8)
    await obey(links, "p1")
    assert links.proved == {P0: None, P1: None}


async def test_links_that_have_not_changed_are_the_same_object(links: ProvenLinks) -> None:
    """So a report finds without a comparison that they need not be sent."""
    await obey(links, "p0")
    before = links.proved
    await obey(links, "p0")
    assert links.proved is before
    await obey(links, "p1")
    assert links.proved is not before
    assert before == {P0: None}


async def test_worker_that_is_gone_is_forgotten(links: ProvenLinks) -> None:
    await obey(links, "p0", measures=True)
    await obey(links, "p1")
    links.obey(None, gone=(P0, WorkerId("unknown")))
    assert links.proved == {P1: None}


async def test_link_that_is_suspected_is_proved_again_and_keeps_its_speed(links: ProvenLinks, probe: FakeProbe) -> None:
    await obey(links, "p0", measures=True)
    links.suspect(P0)
    assert links.proved == {}
    await obey(links, "p0")
    assert (probe.proofs, probe.measurements, links.proved) == (["p0", "p0"], ["p0"], {P0: SPEED})


async def test_link_that_is_suspected_while_it_is_measured_is_proved_again(
    links: ProvenLinks, probe: FakeProbe
) -> None:
    probe.measure_gate.hold()
    await obey(links, "p0", measures=True)
    links.suspect(P0)
    probe.measure_gate.open()
    await loop_rounds(8)
    assert links.proved == {}
    await obey(links, "p0")
    assert (probe.proofs, links.proved) == (["p0", "p0"], {P0: SPEED})


async def test_link_that_is_suspected_while_it_is_proved_is_not_proved(links: ProvenLinks, probe: FakeProbe) -> None:
    probe.gate.hold()
    await obey(links, "p0")
    links.suspect(P0)
    probe.gate.open()
    await loop_rounds(8)
    assert (links.probing, links.proved) == (None, {})
    await obey(links, "p0")
    assert links.proved == {P0: None}


async def test_link_that_failed_can_be_tried_again(
    links: ProvenLinks, probe: FakeProbe, caplog: pytest.LogCaptureFixture
) -> None:
    probe.failing = {"p0"}
    await obey(links, "p0")
    assert (links.probing, links.proved) == (None, {})
    assert "no link to prefill worker p0 yet: nothing was pulled" in caplog.text
    probe.failing = set()
    await obey(links, "p0")
    assert links.proved == {P0: None}


async def test_link_that_fails_for_long_or_is_suspected_often_is_one_line_of_the_log(
    links: ProvenLinks, probe: FakeProbe, caplog: pytest.LogCaptureFixture
) -> None:
    await obey(links, "p0")
    links.suspect(P0)
    links.suspect(P0)
    probe.failing = {"p0"}
    await obey(links, "p0", times=5)
    probe.failing = set()
    await obey(links, "p0")
    probe.failing = {"p0"}
    links.suspect(P0)
    await obey(links, "p0", times=5)
    one_time = ["no requests from prefill worker p0 until", "no link to prefill worker p0 yet: nothing was"]
    assert [begin in record.message for begin, record in zip(one_time * 2, caplog.records, strict=True)] == [True] * 4


async def test_speeds_of_doubtful_links_are_bounded(links: ProvenLinks, probe: FakeProbe) -> None:
    names = [f"p{number}" for number in range(MOST_DOUBTFUL + 1)]
    for name in names:
        await obey(links, name, measures=True)
    for name in names:
        links.suspect(WorkerId(name))
    await obey(links, "p0")
    await obey(links, "p1")
    assert links.proved == {P0: None, P1: SPEED}


async def test_proof_that_hangs_is_given_up_and_can_be_tried_again(
    links: ProvenLinks, probe: FakeProbe, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "PROOF_TIMEOUT_S", 0.01)
    probe.gate.hold()
    with caplog.at_level(logging.WARNING):
        links.obey(LinkOrder(P0))
        await asyncio.sleep(0.05)
    assert "no link to prefill worker p0 yet: it took too long" in caplog.text
    probe.gate.open()
    await obey(links, "p0")
    assert (probe.proofs, links.proved) == (["p0", "p0"], {P0: None})


@pytest.mark.parametrize("how", ["fails", "cannot be told"])
async def test_link_that_cannot_be_measured_counts(links: ProvenLinks, probe: FakeProbe, how: str) -> None:
    probe.unmeasurable, probe.speed = ({"p0"}, SPEED) if how == "fails" else (set(), None)
    await obey(links, "p0", measures=True)
    assert (links.probing, links.proved) == (None, {P0: None})
    probe.unmeasurable, probe.speed = set(), SPEED
    await obey(links, "p0", measures=True)
    assert (probe.proofs, links.proved) == (["p0"], {P0: SPEED})
