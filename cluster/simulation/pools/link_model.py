"""How long the KV blocks of a handoff travel: `latency_s + num_bytes / bytes_per_s`. Pure.

A transfer occupies the outgoing link of its prefill worker and the incoming link of its decode worker until it ends.
A transfer begins when both links are free. Transfers of one link run one after another, in the order in which they were
requested.
"""

from cluster.messages.transport import LinkSpeed


class LinkModel:
    __slots__ = ("_free_at", "_slow", "_speed")

    def __init__(self, speed: LinkSpeed, slow: dict[tuple[str, str], LinkSpeed] | None = None) -> None:
        """`slow`: the speed of each pair of a prefill and a decode worker that differs from `speed`."""
        self._speed = speed
        self._slow = slow or {}
        self._free_at: dict[str, float] = {}

    def speed(self, prefill: str, decode: str) -> LinkSpeed:
        return self._slow.get((prefill, decode), self._speed)

    def send(self, prefill: str, decode: str, num_bytes: int, now: float) -> tuple[float, float]:
        """Queue a transfer, and return the times at which it begins and ends."""
        begins_at = max(now, self._free_at.get(prefill, 0.0), self._free_at.get(decode, 0.0))
        speed = self.speed(prefill, decode)
        ends_at = begins_at + speed.latency_s + num_bytes / speed.bytes_per_s
        self._free_at[prefill] = self._free_at[decode] = ends_at
        return begins_at, ends_at
