"""How long the transfer of KV blocks takes on each link, learned from past handoffs. Pure.

A transfer takes `latency_s + num_bytes / bytes_per_s` when no transfer queues before it; placement adds the backlog. A
class of links (router/links/link_classes.py) starts from the speed that was measured on one of them, and follows the
handoffs of all of them. A link starts from its own measured speed, or else from what its class has at its first
handoff, and then follows its own handoffs. A class without a measurement starts from what was learned from all links.
"""

from math import inf
from typing import Final, final

from cluster.messages.ids import WorkerId
from cluster.messages.transport import LinkSpeed
from router.prediction.recursive_least_squares import RecursiveLeastSquares

LinkClass = tuple[int, int, bool]
"""The classes of the nodes of a prefill and a decode worker, and whether both workers are on one node."""

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
_MEASURED_DOUBT, _UNKNOWN_DOUBT = 2.0, 3.0
"""Expected error of the first estimate with and without a measurement, as a share. Higher follows the first handoffs
faster, noise included; lower keeps a wrong estimate longer.
"""
_NOISE: Final = 0.15
"""Usual error of one sample, as a share. Higher learns more slowly; lower follows noise."""


@final
class TransferModel:
    """The speed of one link, of a class of links, or of all links."""

    __slots__ = ("_estimate", "_units", "_wider", "latency_s", "prior", "s_per_byte")

    def __init__(self, prior: LinkSpeed | None, wider: "TransferModel | None" = None) -> None:
        """`prior`: a measured speed, None without a measurement; `wider`: a model that learns from the same transfers,
        and from others.
        """
        self._wider = wider
        self.begin(prior)

    def begin(self, prior: LinkSpeed | None) -> None:
        """Forget what was learned, and start from a speed."""
        self.prior = prior
        known = prior or UNKNOWN
        doubt = _MEASURED_DOUBT if prior else _UNKNOWN_DOUBT
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
        if self._wider is not None:
            self._wider.observe(num_bytes, seconds)

    def speed(self) -> LinkSpeed:
        """As learned so far."""
        return LinkSpeed(self.latency_s, 1 / self.s_per_byte)


@final
class TransferModels:
    """The models of all links, by decode worker and prefill worker, and those of their classes."""

    def __init__(self) -> None:
        self._all = TransferModel(None)
        self._classes: dict[LinkClass, TransferModel] = {}
        self._links: dict[WorkerId, dict[WorkerId, TransferModel]] = {}
        """By decode worker, then by prefill worker: links that were measured, or that have had a handoff."""

    def link(
        self, prefill: WorkerId, decode: WorkerId, measured: LinkSpeed | None, link_class: LinkClass | None = None
    ) -> TransferModel:
        """The model of a link. `measured`: the speed that was measured on this link; another one makes a new model.
        `link_class`: None if the class is not known.
        """
        links = self._links.get(decode)
        link = links.get(prefill) if links is not None else None
        if measured is None or not has_meaning(measured):
            return link or self._wider(link_class)
        if link is None or (link.prior is not measured and link.prior != measured):
            link = TransferModel(measured, self._wider(link_class))
            self._links.setdefault(decode, {})[prefill] = link
        return link

    def observe(
        self,
        prefill: WorkerId,
        decode: WorkerId,
        measured: LinkSpeed | None,
        link_class: LinkClass | None,
        num_bytes: float,
        seconds: float,
    ) -> None:
        """Learn from a handoff. `link_class`: None if the class is not known, because a worker is gone: then only what
        is known of all links changes.
        """
        link = self.link(prefill, decode, measured, link_class)
        if link_class is not None and link is self._wider(link_class):
            wider = self._classes.get(link_class)
            if wider is None:
                wider = self._classes[link_class] = TransferModel(self._all.speed(), self._all)
            link = self._links.setdefault(decode, {})[prefill] = TransferModel(wider.speed(), wider)
        link.observe(num_bytes, seconds)

    def class_measured(self, link_class: LinkClass, speed: LinkSpeed) -> None:
        """The speed of a link of this class was measured: the class begins anew."""
        known = self._classes.get(link_class)
        if known is None:
            self._classes[link_class] = TransferModel(speed, self._all)
        else:
            known.begin(speed)

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone, and its id never comes back."""
        if self._links.pop(worker, None) is None:
            for links in self._links.values():
                links.pop(worker, None)

    def _wider(self, link_class: LinkClass | None) -> TransferModel:
        """The model that a link without one has."""
        return self._all if link_class is None else self._classes.get(link_class, self._all)


def has_meaning(speed: LinkSpeed) -> bool:
    return 0.0 <= speed.latency_s < _LONGEST_S and 0.0 < speed.bytes_per_s < inf
