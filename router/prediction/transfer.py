"""How long the transfer of KV blocks takes on each link, learned from past handoffs. Pure.

A transfer takes `latency_s + num_bytes / bytes_per_s` when no transfer queues before it; placement adds the backlog. A
link starts from the measured speed of its proof and then follows its own handoffs. A link without a proof has the speed
that was learned from all links.
"""

from math import inf
from typing import Final, final

from cluster.messages.ids import WorkerId
from cluster.messages.transport import LinkSpeed
from router.prediction.recursive_least_squares import RecursiveLeastSquares

UNKNOWN = LinkSpeed(latency_s=2e-3, bytes_per_s=2e9)
"""Speed of a link before any link was measured."""

_LONGEST_S: Final = 600.0
"""Longest transfer that is learned from, in seconds. Higher learns from stalls; lower ignores slow links."""
_RELATIVE_ABOVE_S: Final = 1e-3
"""Length of a transfer, in seconds, below which errors count as shares of this constant. Higher takes errors of short
transfers for small; lower lets noise of short transfers move the estimate.
"""
_LEAST_LATENCY_S: Final = 0.2e-3
"""Smallest unit of a latency, in seconds. Higher changes a small latency in steps that are too large; lower learns late
that a link has a latency.
"""
_PROVED_DOUBT, _UNKNOWN_DOUBT = 2.0, 3.0
"""Expected error of the first estimate with and without a proof, as a share. Higher follows the first handoffs faster,
noise included; lower keeps a wrong estimate longer.
"""
_NOISE: Final = 0.15
"""Usual error of one sample, as a share. Higher learns more slowly; lower follows noise."""


@final
class TransferModel:
    """The speed of one link, or of all links together."""

    __slots__ = ("_all", "_estimate", "_units", "latency_s", "prior", "s_per_byte")

    def __init__(self, prior: LinkSpeed | None, all_links: "TransferModel | None" = None) -> None:
        """`prior`: the speed of the link's proof, None without a proof; `all_links`: a model that learns from the same
        transfers.
        """
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
        self.s_per_byte = max(per_byte, 1e-6) * self._units[1]  # a rate must stay finite
        if self._all is not None:
            self._all.observe(num_bytes, seconds)


@final
class TransferModels:
    """The models of all links, by prefill worker and decode worker."""

    def __init__(self) -> None:
        self._all = TransferModel(None)
        self._links: dict[tuple[WorkerId, WorkerId], TransferModel] = {}

    def link(self, prefill: WorkerId, decode: WorkerId, proved: LinkSpeed | None) -> TransferModel:
        """The model of a link. `proved`: the measured speed of the link's proof. A new proof makes a new model; a link
        that never had a proof has the model of all links.
        """
        link = self._links.get((prefill, decode))
        if proved is None or not _has_meaning(proved):
            return link or self._all
        if link is None or (link.prior is not proved and link.prior != proved):
            link = self._links[prefill, decode] = TransferModel(proved, self._all)
        return link

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone, and its id never comes back."""
        self._links = {pair: link for pair, link in self._links.items() if worker not in pair}


def _has_meaning(speed: LinkSpeed) -> bool:
    return 0.0 <= speed.latency_s < _LONGEST_S and 0.0 < speed.bytes_per_s < inf
