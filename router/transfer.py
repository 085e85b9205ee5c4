"""What the hand-over of KV blocks takes on each link, learned from the hand-overs that were. Pure.

A transfer takes `latency_s + num_bytes / bytes_per_s` when nothing queues before it; who places requests adds the
backlog. A link starts from the speed that it was proved with, or from what all links together have taught, and then
follows its own hand-overs.
"""

from cluster.types import LinkSpeed, WorkerId
from router.rls import RecursiveLeastSquares

UNKNOWN = LinkSpeed(latency_s=2e-3, bytes_per_s=2e9)
"""Before any link has been measured."""

_LONGEST_S = 600.0
_RELATIVE_ABOVE_S = 1e-3
"""Errors in shorter transfers count as shares of this."""
_LEAST_LATENCY_S = 0.2e-3
"""Unit of a latency that was measured as none."""
_PROVED_DOUBT, _UNKNOWN_DOUBT = 2.0, 3.0
_NOISE = 0.15


class TransferModel:
    """Of one link, or of all together."""

    __slots__ = ("_estimate", "_units", "latency_s", "prior", "s_per_byte")

    def __init__(self, prior: LinkSpeed | None) -> None:
        """None: nothing is known about the link."""
        self.prior = prior
        known = prior or UNKNOWN
        doubt = _PROVED_DOUBT if prior else _UNKNOWN_DOUBT
        self.latency_s, self.s_per_byte = known.latency_s, 1 / known.bytes_per_s
        self._units = max(self.latency_s, _LEAST_LATENCY_S), self.s_per_byte
        self._estimate = RecursiveLeastSquares(
            [self.latency_s / self._units[0], 1.0], own_doubt=doubt, common_doubt=doubt, noise=_NOISE
        )

    @property
    def speed(self) -> LinkSpeed:
        return LinkSpeed(latency_s=self.latency_s, bytes_per_s=1 / self.s_per_byte)

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes * self.s_per_byte

    def observe(self, num_bytes: float, seconds: float) -> None:
        if not (0 < seconds <= _LONGEST_S and num_bytes > 0):
            return
        self._estimate.update([self._units[0], num_bytes * self._units[1]], seconds, least=_RELATIVE_ABOVE_S)
        latency, per_byte = self._estimate.coefficients
        self.latency_s = latency * self._units[0]
        self.s_per_byte = max(per_byte, 1e-6) * self._units[1]  # no link is infinitely fast


class TransferModels:
    """Of all links, by (prefill worker, decode worker)."""

    def __init__(self) -> None:
        self._all = TransferModel(None)
        self._links: dict[tuple[WorkerId, WorkerId], TransferModel] = {}

    def seconds(self, prefill: WorkerId, decode: WorkerId, num_bytes: float) -> float:
        return self._links.get((prefill, decode), self._all).seconds(num_bytes)

    def proved(self, prefill: WorkerId, decode: WorkerId, speed: LinkSpeed) -> None:
        """Begin again from a measured speed, unless it is the one that the link began from."""
        link = self._links.get((prefill, decode))
        if link is None or link.prior != speed:
            self._links[prefill, decode] = TransferModel(speed)

    def observe(self, prefill: WorkerId, decode: WorkerId, num_bytes: float, seconds: float) -> None:
        link = self._links.get((prefill, decode))
        if link is None:
            link = self._links[prefill, decode] = TransferModel(self._all.speed)
        link.observe(num_bytes, seconds)
        self._all.observe(num_bytes, seconds)

    def forget(self, worker: WorkerId) -> None:
        """It is gone, and its id never comes back."""
        self._links = {pair: link for pair, link in self._links.items() if worker not in pair}
