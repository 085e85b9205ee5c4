from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.transport import LinkSpeed
from decode.link_speed import LinkSample, fit

BLOCK_BYTES = 50_000
SMALL, LARGE = 2, 64

durations_s = st.integers(0, 100_000_000).map(lambda us: us / 1e6)
"""NIXL counts microseconds."""
samples = st.builds(LinkSample, st.integers(1, 100), st.integers(0, 1 << 40), durations_s)


def taking(num_blocks: int, duration_s: float, other_bytes: int = 0) -> LinkSample:
    return LinkSample(num_blocks, num_blocks * BLOCK_BYTES + other_bytes, duration_s)


def over(num_blocks: int, speed: LinkSpeed, delay_s: float = 0.0) -> LinkSample:
    """What a link of this speed takes for so many blocks."""
    return taking(num_blocks, speed.latency_s + num_blocks * BLOCK_BYTES / speed.bytes_per_s + delay_s)


speeds = st.builds(LinkSpeed, st.floats(1e-6, 1e-1), st.floats(1e6, 1e11))


@given(speeds, st.lists(st.floats(0, 1), max_size=3), st.lists(st.floats(0, 1), max_size=3))
def test_known_speed_is_found_whatever_delays_the_other_samples(
    speed: LinkSpeed, small_delays_s: list[float], large_delays_s: list[float]
) -> None:
    small = [over(SMALL, speed, delay_s) for delay_s in [*small_delays_s, 0.0]]
    large = [over(LARGE, speed, delay_s) for delay_s in [*large_delays_s, 0.0]]
    found = fit([*large, *small])
    assert found is not None
    assert found.latency_s == pytest.approx(speed.latency_s, rel=1e-3, abs=1e-9)
    assert found.bytes_per_s == pytest.approx(speed.bytes_per_s, rel=1e-3)


@given(st.lists(samples, max_size=8))
def test_speed_is_never_negative_or_infinite(taken: list[LinkSample]) -> None:
    found = fit(taken)
    if found is not None:
        assert 0 <= found.latency_s <= 100
        assert 0 < found.bytes_per_s < float("inf")


def test_sample_that_another_pull_fell_into_is_left_out() -> None:
    clean = [taking(SMALL, 0.010), taking(LARGE, 0.072)]
    mixed = [taking(SMALL, 0.001, other_bytes=10 * BLOCK_BYTES), taking(LARGE, 0.001, other_bytes=BLOCK_BYTES)]
    assert fit([*mixed, *clean]) == fit(clean)


def test_large_handoff_that_took_no_longer_leaves_only_latency() -> None:
    speed = fit([taking(SMALL, 0.010), taking(LARGE, 0.008)])
    assert speed == LinkSpeed(0.008, LARGE * BLOCK_BYTES / 0.008)


def test_large_handoff_that_was_slower_per_byte_leaves_no_latency() -> None:
    speed = fit([taking(SMALL, 0.001), taking(LARGE, 0.320)])
    assert speed == LinkSpeed(0.0, LARGE * BLOCK_BYTES / 0.320)


@pytest.mark.parametrize(
    "taken",
    [[], [taking(SMALL, 0.01)], [taking(SMALL, 0.01), taking(SMALL, 0.02)], [taking(SMALL, 0.0), taking(LARGE, 0.0)]],
    ids=["none", "one", "one size", "no time"],
)
def test_speed_that_cannot_be_told_is_none(taken: list[Any]) -> None:
    assert fit(taken) is None
