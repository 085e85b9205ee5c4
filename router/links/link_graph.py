"""LinkGraph: which links are proved, as decode workers report them, and which of them are probed now. Pure.

Decode workers report links also to prefill workers that do not live: to those that are gone, and to those that have
not reported to a Scheduler process that was just started. A change costs as much as the links that it concerns.
"""

from typing import Final, final

from cluster.messages.ids import WorkerId
from cluster.messages.transport import LinkSpeed

LINKS_AHEAD: Final = 8
"""Links that each worker gets without a wish. Higher costs large clusters more prefills and connections at the start;
lower has more placements find their best pair without a link. With 8, clusters up to 8 x 8 are linked completely, and
with 100 x 100 workers one of the 12 best pairs that a placement considers has a link in 6 of 10 cases.
"""


@final
class DecodeNode:
    """A decode worker that lives."""

    __slots__ = ("gone", "links", "num_live", "probing")

    def __init__(self) -> None:
        self.links: dict[WorkerId, LinkSpeed | None] = {}
        """As last reported."""
        self.num_live = 0
        """Links to prefill workers that live."""
        self.gone: dict[WorkerId, None] = {}
        """Linked prefill workers that do not live, in a fixed order: a replay must go through them in the same one."""
        self.probing: WorkerId | None = None
        """The prefill worker to which a link is proved or measured."""


@final
class PrefillNode:
    """A prefill worker that lives, or that a decode worker has a link to."""

    __slots__ = ("gone_at", "is_live", "linked", "place", "probed_by")

    def __init__(self, now: float) -> None:
        self.is_live = False
        self.gone_at = now
        """When it was found not to live."""
        self.place = 0
        """Its place in the list of live prefill workers."""
        self.linked: dict[WorkerId, None] = {}
        """Decode workers that report a proved link, in a fixed order."""
        self.probed_by: set[WorkerId] = set()
        """Decode workers that prove or measure their link."""

    @property
    def is_known(self) -> bool:
        return self.is_live or bool(self.linked) or bool(self.probed_by)


@final
class LinkGraph:
    __slots__ = ("decodes", "live", "num_short", "prefills")

    def __init__(self) -> None:
        self.decodes: dict[WorkerId, DecodeNode] = {}
        self.prefills: dict[WorkerId, PrefillNode] = {}
        self.live: list[WorkerId] = []
        """The prefill workers that live, in no order."""
        self.num_short = 0
        """Those of them that have fewer than LINKS_AHEAD links."""

    def add_decode(self, worker: WorkerId) -> None:
        self.decodes[worker] = DecodeNode()

    def add_prefill(self, worker: WorkerId, now: float) -> None:
        node = self._prefill(worker, now)
        node.is_live, node.place = True, len(self.live)
        self.live.append(worker)
        self.num_short += len(node.linked) < LINKS_AHEAD
        for linked in node.linked:
            self.decodes[linked].num_live += 1
            self.decodes[linked].gone.pop(worker, None)

    def forget(self, worker: WorkerId, now: float) -> None:
        """The worker does not live. No-op for a worker that was not added."""
        if worker in self.decodes:
            self.probes(worker, None, now)
            for linked in self.decodes.pop(worker).links:
                self._unlink(linked, worker)
        elif (node := self.prefills.get(worker)) is not None and node.is_live:
            self.num_short -= len(node.linked) < LINKS_AHEAD
            last = self.live.pop()
            if last != worker:
                self.live[node.place] = last
                self.prefills[last].place = node.place
            node.is_live, node.gone_at = False, now
            for linked in node.linked:
                self.decodes[linked].num_live -= 1
                self.decodes[linked].gone[worker] = None
            self._drop(worker)

    def take(self, worker: WorkerId, links: dict[WorkerId, LinkSpeed | None], now: float) -> list[WorkerId]:
        """A decode worker reports these links. Returns the live prefill workers that it has no link to any more."""
        node = self.decodes[worker]
        before, node.links = node.links, links
        lost: list[WorkerId] = []
        for prefill in before:
            if prefill not in links:
                self._unlink(prefill, worker)
                if prefill in node.gone:
                    del node.gone[prefill]
                else:
                    node.num_live -= 1
                    lost.append(prefill)
        for prefill in links:
            if prefill not in before:
                self._link(prefill, worker, node, now)
        return lost

    def probes(self, worker: WorkerId, prefill: WorkerId | None, now: float) -> None:
        """A decode worker proves or measures this link now, or none."""
        node = self.decodes[worker]
        if node.probing is not None and node.probing != prefill:
            self.ignore_probe(worker)
        if prefill is not None and node.probing != prefill:
            self._prefill(prefill, now).probed_by.add(worker)
        node.probing = prefill

    def ignore_probe(self, worker: WorkerId) -> None:
        """The probe of a decode worker no longer counts for its prefill worker."""
        probing = self.decodes[worker].probing
        if probing is not None and (known := self.prefills.get(probing)) is not None:
            known.probed_by.discard(worker)
            self._drop(probing)

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        assert len(self.live) == len(set(self.live)) == sum(node.is_live for node in self.prefills.values())
        assert self.num_short == sum(len(self.prefills[worker].linked) < LINKS_AHEAD for worker in self.live)
        for place, worker in enumerate(self.live):
            assert self.prefills[worker].is_live
            assert self.prefills[worker].place == place
        for worker, prefill in self.prefills.items():
            assert prefill.is_known
            assert prefill.linked.keys() == {name for name, decode in self.decodes.items() if worker in decode.links}
            assert prefill.probed_by <= {name for name, decode in self.decodes.items() if decode.probing == worker}
        for decode in self.decodes.values():
            assert decode.links.keys() <= self.prefills.keys()
            assert decode.gone.keys() == {worker for worker in decode.links if not self.prefills[worker].is_live}
            assert decode.num_live == len(decode.links) - len(decode.gone)

    def _link(self, prefill: WorkerId, worker: WorkerId, node: DecodeNode, now: float) -> None:
        known = self._prefill(prefill, now)
        known.linked[worker] = None
        if known.is_live:
            node.num_live += 1
            self.num_short -= len(known.linked) == LINKS_AHEAD
        else:
            node.gone[prefill] = None

    def _unlink(self, prefill: WorkerId, worker: WorkerId) -> None:
        known = self.prefills[prefill]
        self.num_short += known.is_live and len(known.linked) == LINKS_AHEAD
        known.linked.pop(worker, None)
        self._drop(prefill)

    def _prefill(self, worker: WorkerId, now: float) -> PrefillNode:
        known = self.prefills.get(worker)
        if known is None:
            known = self.prefills[worker] = PrefillNode(now)
        return known

    def _drop(self, worker: WorkerId) -> None:
        """Forget a prefill worker that nothing is known of any more."""
        if not self.prefills[worker].is_known:
            del self.prefills[worker]
