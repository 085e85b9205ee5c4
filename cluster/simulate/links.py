"""When a hand-over's KV has come: `latency_s + num_bytes / bytes_per_s`, one after the other at either end. Pure.

A transfer holds the way out of its prefill worker and the way into its decode worker until it is over, and begins when
both are free, in order of asking.
"""

from cluster.types import LinkSpeed


class Links:
    __slots__ = ("_bytes_per_s", "_free_at", "_latency_s", "_slow")

    def __init__(self, speed: LinkSpeed, slow: dict[tuple[str, str], LinkSpeed] | None = None) -> None:
        """`slow`: pairs of a prefill and a decode worker that have a speed of their own."""
        self._latency_s, self._bytes_per_s = speed.latency_s, speed.bytes_per_s
        self._slow = slow or {}
        self._free_at: dict[str, float] = {}

    def send(self, prefill: str, decode: str, num_bytes: int, now: float) -> float:
        """When it has come."""
        begins_at = max(now, self._free_at.get(prefill, 0.0), self._free_at.get(decode, 0.0))
        speed = self._slow.get((prefill, decode))
        if speed is None:
            ends_at = begins_at + self._latency_s + num_bytes / self._bytes_per_s
        else:
            ends_at = begins_at + speed.latency_s + num_bytes / speed.bytes_per_s
        self._free_at[prefill] = self._free_at[decode] = ends_at
        return ends_at
