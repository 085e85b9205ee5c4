"""What the handoff of KV blocks takes on each link, learned from the handoffs that were. Pure.

A transfer takes `latency_s + num_bytes / bytes_per_s` when nothing queues before it; who places requests adds the
backlog. A link starts from the speed that it was proved with and then follows its own handoffs; one that was not
proved takes what all links together have taught.
"""

from math import inf
from typing import Final, final

from cluster.messages.ids import WorkerId
from cluster.messages.transport import LinkSpeed
from router.prediction.recursive_least_squares import RecursiveLeastSquares

UNKNOWN = LinkSpeed(latency_s=2e-3, bytes_per_s=2e9)
"""Before any link has been measured."""

_LONGEST_S: Final = 600.0
_RELATIVE_ABOVE_S: Final = 1e-3
"""Errors in shorter transfers count as shares of this."""
_LEAST_LATENCY_S: Final = 0.2e-3
"""Unit of a latency that was measured as none."""
_PROVED_DOUBT, _UNKNOWN_DOUBT = 2.0, 3.0
_NOISE: Final = 0.15


@final
class TransferModel:
    """Of one link, or of all together."""

    __slots__ = ("_all", "_estimate", "_units", "latency_s", "prior", "s_per_byte")

    def __init__(self, prior: LinkSpeed | None, all_links: "TransferModel | None" = None) -> None:
        """None: nothing is known about the link. `all_links` is taught what this one learns."""
        self.prior = prior
        self._all = all_links
        known = prior or UNKNOWN
        doubt = _PROVED_DOUBT if prior else _UNKNOWN_DOUBT
        self.latency_s, self.s_per_byte = known.latency_s, 1 / known.bytes_per_s
        self._units = max(self.latency_s, _LEAST_LATENCY_S), self.s_per_byte
        self._estimate = RecursiveLeastSquares(
            [self.latency_s / self._units[0], 1.0], own_doubt=doubt, common_doubt=doubt, noise=_NOISE
        )

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes * self.s_per_byte

    def observe(self, num_bytes: float, seconds: float) -> None:
        if not (0 < seconds <= _LONGEST_S and num_bytes > 0):
            return
        self._estimate.update([self._units[0], num_bytes * self._units[1]], seconds, least=_RELATIVE_ABOVE_S)
        latency, per_byte = self._estimate.coefficients
        self.latency_s = latency * self._units[0]
        self.s_per_byte = max(per_byte, 1e-6) * self._units[1]  # no link is infinitely fast
        if self._all is not None:
            self._all.observe(num_bytes, seconds)


@final
class TransferModels:
    """Of all links, by (prefill worker, decode worker)."""

    def __init__(self) -> None:
        self._all = TransferModel(None)
        self._links: dict[tuple[WorkerId, WorkerId], TransferModel] = {}

    def link(self, prefill: WorkerId, decode: WorkerId, proved: LinkSpeed | None) -> TransferModel:
        """`proved`: the speed that was measured when the link was. A new one begins anew; without one, the link is as
        all links together.
        """
        link = self._links.get((prefill, decode))
        if proved is None or not _has_meaning(proved):
            return link or self._all
        if link is None or (link.prior is not proved and link.prior != proved):
            link = self._links[prefill, decode] = TransferModel(proved, self._all)
        return link

    def forget(self, worker: WorkerId) -> None:
        """It is gone, and its id never comes back."""
        self._links = {pair: link for pair, link in self._links.items() if worker not in pair}


def _has_meaning(speed: LinkSpeed) -> bool:
    return 0.0 <= speed.latency_s < _LONGEST_S and 0.0 < speed.bytes_per_s < inf
