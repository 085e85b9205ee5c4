"""How fast a link is, from handoffs of two sizes. Pure.

The time of a transfer is modelled as `latency_s + num_bytes / bytes_per_s`. Disturbances only add: other work on the
machine adds time, and the pull of another request, which the engine's telemetry does not separate, adds bytes. So of
all samples of one size, the one with the fewest bytes counts, and among equals the one with the shortest time.
"""

from collections.abc import Sequence

import msgspec

from cluster.messages.transport import LinkSpeed


class LinkSample(msgspec.Struct, frozen=True):
    """One handoff, as the decode engine saw it."""

    num_blocks: int
    num_bytes: int
    duration_s: float


def fit(samples: Sequence[LinkSample]) -> LinkSpeed | None:
    """The speed of a link. None if all samples have one size, or took no measurable time."""
    if not samples:
        return None
    small = _best(samples, min(sample.num_blocks for sample in samples))
    large = _best(samples, max(sample.num_blocks for sample in samples))
    if large.num_bytes <= small.num_bytes or large.duration_s <= 0:
        return None
    bytes_per_s = large.num_bytes / large.duration_s
    if (
        large.duration_s <= small.duration_s
    ):  # the size made no difference: all of it is latency, and the bandwidth is at least this
        return LinkSpeed(latency_s=large.duration_s, bytes_per_s=bytes_per_s)
    slope = (large.num_bytes - small.num_bytes) / (large.duration_s - small.duration_s)
    latency_s = small.duration_s - small.num_bytes / slope
    if latency_s < 0:  # the large one was slower per byte: no latency is visible
        return LinkSpeed(latency_s=0.0, bytes_per_s=bytes_per_s)
    return LinkSpeed(latency_s=latency_s, bytes_per_s=slope)


def _best(samples: Sequence[LinkSample], num_blocks: int) -> LinkSample:
    alike = [sample for sample in samples if sample.num_blocks == num_blocks]
    return min(alike, key=lambda sample: (sample.num_bytes, sample.duration_s))
