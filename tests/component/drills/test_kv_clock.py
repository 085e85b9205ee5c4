"""The drills' clock of KV blocks counts from the fault, and only what is seen after the end proves anything."""

import queue
from collections.abc import Iterator

import httpx
import pytest

from tests.drills.kv_clock import Back, KvClock

NOTHING, SOMETHING, SILENT = "", "1 running, 0 waiting, 15 blocks, 0 leases", None
P, D = "prefill 1", "decode 1"
NEVER = Back(0.0, 0.0)
TIMEOUT_S = 10.0


class Engines:
    """Engines whose states a test tells one after another. A look waits until there is one to see."""

    def __init__(self) -> None:
        self._states: queue.Queue[dict[str, str | None] | None] = queue.Queue()
        self._begun: queue.Queue[None] = queue.Queue()

    def are(self, prefill: str | None, decode: str | None) -> None:
        self._states.put({P: prefill, D: decode})

    def cannot_be_asked(self) -> None:
        self._states.put(None)

    def wait_until_looked_at(self) -> None:
        """A look has begun that sees the state that is told next."""
        self._begun.get(timeout=TIMEOUT_S)

    def look(self) -> dict[str, str | None]:
        self._begun.put(None)
        state = self._states.get(timeout=TIMEOUT_S)
        if state is None:
            raise httpx.ConnectError("nobody listens")
        return state


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def clock(engines: Engines) -> Iterator[KvClock]:
    yield KvClock(engines.look, interval_s=0.001)


def test_engine_that_never_had_anything_took_no_time(engines: Engines, clock: KvClock) -> None:
    engines.are(NOTHING, NOTHING)
    with clock:
        clock.over()
        engines.are(NOTHING, NOTHING)
        engines.are(NOTHING, NOTHING)
        assert clock.wait(TIMEOUT_S) == {P: NEVER, D: NEVER}


def test_time_counts_from_the_fault_and_not_from_the_end(engines: Engines, clock: KvClock) -> None:
    engines.are(SOMETHING, SOMETHING)
    with clock:
        engines.wait_until_looked_at()
        engines.are(SOMETHING, SOMETHING)
        engines.wait_until_looked_at()
        engines.are(NOTHING, SOMETHING)
        engines.wait_until_looked_at()
        engines.wait_until_looked_at()
        over_s = clock.over()
        engines.are(NOTHING, SOMETHING)
        engines.are(NOTHING, NOTHING)
        back = clock.wait(TIMEOUT_S)
    assert 0 < back[P].earliest_s < back[P].latest_s <= over_s
    assert over_s <= back[D].earliest_s < back[D].latest_s


def test_engine_that_gets_the_victim_after_the_fault_has_it_back_later(engines: Engines, clock: KvClock) -> None:
    engines.are(NOTHING, NOTHING)
    with clock:
        for decode in (NOTHING, SOMETHING, NOTHING, SOMETHING):
            engines.are(NOTHING, decode)
        for _ in range(6):
            engines.wait_until_looked_at()
        over_s = clock.over()
        engines.are(NOTHING, SOMETHING)
        engines.are(NOTHING, NOTHING)
        back = clock.wait(TIMEOUT_S)
    assert back[P] == NEVER
    assert back[D].earliest_s >= over_s


def test_look_that_began_before_the_end_proves_nothing(engines: Engines, clock: KvClock) -> None:
    engines.are(NOTHING, NOTHING)
    with clock:
        engines.wait_until_looked_at()
        engines.wait_until_looked_at()
        clock.over()
        engines.are(NOTHING, NOTHING)
        engines.are(NOTHING, SOMETHING)
        engines.are(SOMETHING, NOTHING)  # the prefill engine's are a link's proof: it was seen with nothing
        back = clock.wait(TIMEOUT_S)
    assert back[P] == NEVER != back[D]


def test_engine_that_is_silent_has_what_it_had(engines: Engines, clock: KvClock) -> None:
    engines.are(SOMETHING, NOTHING)
    with clock:
        engines.are(SILENT, SILENT)
        engines.cannot_be_asked()
        for _ in range(4):
            engines.wait_until_looked_at()
        over_s = clock.over()
        engines.are(SILENT, SILENT)
        engines.are(NOTHING, NOTHING)
        back = clock.wait(TIMEOUT_S)
    assert back[D] == NEVER
    assert back[P].earliest_s < over_s <= back[P].latest_s


def test_engine_that_is_silent_after_the_end_has_something(engines: Engines, clock: KvClock) -> None:
    engines.are(NOTHING, NOTHING)
    with clock:
        over_s = clock.over()
        for decode in (SILENT, SILENT, NOTHING):
            engines.are(NOTHING, decode)
        back = clock.wait(TIMEOUT_S)
    assert back[P] == NEVER
    assert over_s <= back[D].earliest_s < back[D].latest_s


def test_blocks_that_never_come_back_are_told(engines: Engines, clock: KvClock) -> None:
    engines.are(NOTHING, SOMETHING)
    with clock:
        clock.over()
        with pytest.raises(AssertionError, match=f"{D}.*15 blocks"):
            clock.wait(0.01)
        engines.are(NOTHING, NOTHING)
