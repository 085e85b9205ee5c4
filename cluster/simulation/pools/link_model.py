"""When a handoff's KV has come: `latency_s + num_bytes / bytes_per_s`, one after the other at either end. Pure.

A transfer occupies the outbound side of its prefill worker and the inbound side of its decode worker until it ends. It
begins when both are free, in order of the calls.
"""

from cluster.messages.transport import LinkSpeed


class LinkModel:
    __slots__ = ("_free_at", "_slow", "_speed")

    def __init__(self, speed: LinkSpeed, slow: dict[tuple[str, str], LinkSpeed] | None = None) -> None:
        """`slow`: speeds of pairs of a prefill and a decode worker that differ from `speed`."""
        self._speed = speed
        self._slow = slow or {}
        self._free_at: dict[str, float] = {}

    def speed(self, prefill: str, decode: str) -> LinkSpeed:
        return self._slow.get((prefill, decode), self._speed)

    def send(self, prefill: str, decode: str, num_bytes: int, now: float) -> tuple[float, float]:
        """The times at which the transfer begins and ends."""
        begins_at = max(now, self._free_at.get(prefill, 0.0), self._free_at.get(decode, 0.0))
        speed = self.speed(prefill, decode)
        ends_at = begins_at + speed.latency_s + num_bytes / speed.bytes_per_s
        self._free_at[prefill] = self._free_at[decode] = ends_at
        return begins_at, ends_at
