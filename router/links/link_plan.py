"""LinkPlan: which link each decode worker proves or measures next. Pure.

A pair of workers hands nothing over before its link is proved (decode/proven_links.py). A proof is a short prompt for
the prefill worker, and the first one connects two engines, which takes seconds. So links are proved when they are
needed, in this order:

1. Links that a pull has made doubtful: they were proved, and requests use them.
2. Pairs that a placement would have taken (`wish`), the last wish first.
3. In advance, until each worker has LINKS_AHEAD links: so small clusters are soon linked completely, and a new worker
   has links before anyone wishes for them.

A decode worker has one order at a time, and a prefill worker is probed by at most PROBES_PER_PREFILL. An order is given
in the reply to a report. The next report tells whether the decode worker works on it. If not, the order has ended: the
link is proved, or the attempt has failed. So no message has to be acknowledged, and a Scheduler process that was just
started knows all links and probes after one report of each worker.

The plan also chooses the links that are measured (router/links/link_classes.py), among workers without requests, and
tells decode workers which links to forget.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final, final

from cluster.messages.ids import Pool, WorkerId
from cluster.messages.reports import LinkOrder, WorkerReport
from cluster.messages.transport import LinkSpeed
from router.links.link_classes import LinkClasses
from router.links.link_graph import LINKS_AHEAD, DecodeNode, LinkGraph
from router.prediction.transfer import LinkClass, TransferModels

PROBES_PER_PREFILL: Final = 2
"""Links to one prefill worker that are proved at a time. Higher delays the prompts of clients behind probes; lower
takes longer to link a new prefill worker, which is added when there is load.
"""
LOOKS: Final = 16
"""Prefill workers that are looked at for one decode worker and report, to find a link that is proved in advance. Higher
costs each report of a large cluster that is being linked; lower finds such a link later.
"""
WISH_S: Final = 10.0
"""Age up to which a wish counts, in seconds. Higher proves links for traffic that has gone elsewhere; lower loses
wishes that wait for their turn.
"""
MOST_WISHES: Final = 8
"""Wishes that are kept for one decode worker. Higher proves links that matter less; lower forgets pairs that many
requests want.
"""
RETRY_S: Final = 5.0
"""Time from a failed attempt to prove a link to the next one, in seconds. Lower spends the turns of a decode worker on
a prefill worker that hangs; higher keeps a pair without requests for longer.
"""
BACK_OFF_S: Final = 0.5
"""Time without an order after the first failed attempt of a decode worker in a row, in seconds. It doubles with each
further one. Lower burdens prefill workers with a decode worker that can prove nothing; higher links a decode worker
later after a single failure.
"""
MOST_BACK_OFF_S: Final = 30.0
"""Longest time without an order after failed attempts, in seconds. Lower burdens prefill workers where no link can ever
be proved; higher links such workers later once it can.
"""
LONGEST_PROBE_S: Final = 40.0
"""Time after which a probe no longer counts for its prefill worker, in seconds. The decode worker gives up after 30 s.
Lower allows more probes than PROBES_PER_PREFILL; higher lets decode workers that hang keep others from a prefill
worker for longer.
"""
FORGET_S: Final = 60.0
"""Time after which the links to a prefill worker that is gone are forgotten, in seconds. Lower proves links anew after
a pause of the Scheduler or of a worker; higher has decode workers report links that lead nowhere.
"""

Node = tuple[int, str]
"""The class of a worker's node (`LinkClasses.node_class`), and the node's address."""


@final
class _Turn:
    """What is to be proved for one decode worker, and what it was asked to do."""

    __slots__ = ("begun_at", "cursor", "failed", "next_at", "num_failed", "order", "suspected", "wishes")

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        """Where the next look among prefill workers or links begins."""
        self.suspected: dict[WorkerId, None] = {}
        """Prefill workers whose links were proved and no longer are, the longest first."""
        self.wishes: dict[WorkerId, float] = {}
        """When the last placement wished for a link, by prefill worker, the last wish last."""
        self.failed: dict[WorkerId, float] = {}
        """When a link may be tried again, by prefill worker, the last attempt last."""
        self.num_failed = 0
        """Attempts that have failed in a row."""
        self.next_at = 0.0
        """When the worker may get an order again."""
        self.order: LinkOrder | None = None
        """The order that the worker was given last, until it has ended."""
        self.begun_at = 0.0
        """When the worker was given an order, or was first seen to probe a link without one."""


@final
class LinkPlan:
    def __init__(self, is_idle: Callable[[WorkerId], bool], transfers: TransferModels) -> None:
        """`is_idle`: whether a worker has no requests; `transfers`: what learns the measured speeds of classes."""
        self.classes = LinkClasses()
        self._is_idle = is_idle
        self._transfers = transfers
        self._graph = LinkGraph()
        self._nodes: dict[WorkerId, Node] = {}
        """Of all workers that report."""
        self._turns: dict[WorkerId, _Turn] = {}
        """By decode worker."""

    def add(self, report: WorkerReport, now: float) -> int:
        """A worker has reported for the first time. Returns the class of its node."""
        worker, node_class = report.worker, self.classes.node_class(report)
        self._nodes[worker] = node_class, report.address.host
        if report.pool is Pool.DECODE:
            self._turns[worker] = _Turn(len(self._turns) * LOOKS)
            self._graph.add_decode(worker)
        else:
            self._graph.add_prefill(worker, now)
            for linked in self._graph.prefills[worker].linked:
                self._add_class(worker, linked, self._graph.decodes[linked].links[worker], now)
        return node_class

    def forget(self, worker: WorkerId, now: float) -> None:
        """A worker is gone."""
        self._graph.forget(worker, now)
        self._nodes.pop(worker, None)
        self._turns.pop(worker, None)

    def reported(self, report: WorkerReport, now: float) -> None:
        """A worker that was added reports its links, and what it probes."""
        worker = report.worker
        turn = self._turns.get(worker)
        if turn is None:
            return
        graph, node, order = self._graph, self._graph.decodes[worker], turn.order
        before = node.links
        if report.links is not before:
            turn.suspected.update(dict.fromkeys(graph.take(worker, report.links, now)))
            self._learn(worker, turn, before, report.links, now)
        if order is not None and report.probing != order.prefill:
            turn.order = None
            self._ended(worker, turn, order, before, now)
        if report.probing != node.probing:
            graph.probes(worker, report.probing, now)
            turn.begun_at = now
        elif report.probing is not None and now - turn.begun_at > LONGEST_PROBE_S:
            graph.ignore_probe(worker)

    def wish(self, prefill: WorkerId, decode: WorkerId, now: float) -> None:
        """A placement would have taken this pair, had its link been proved."""
        turn = self._turns.get(decode)
        if turn is None or prefill in self._graph.decodes[decode].links:
            return
        turn.wishes.pop(prefill, None)
        turn.wishes[prefill] = now
        if len(turn.wishes) > MOST_WISHES:
            del turn.wishes[next(iter(turn.wishes))]

    def next_order(self, worker: WorkerId, now: float) -> LinkOrder | None:
        """What a worker is to find out next. The order counts as given."""
        turn = self._turns.get(worker)
        if turn is None or now < turn.next_at:
            return None
        node = self._graph.decodes[worker]
        if node.probing is not None:
            return None
        prefill = self._wanted(turn, now)
        if prefill is None and self.classes.is_any_due(now):
            prefill = self._unmeasured(worker, turn, node, now)
        if prefill is None:
            prefill = self._ahead(turn, node, now)
        if prefill is None:
            return None
        its = self._class_of(prefill, worker)
        measures = self.classes.is_due(its, now) and self._is_idle(worker) and self._is_idle(prefill)
        if measures:
            self.classes.begin(its, now)
        turn.order, turn.begun_at = LinkOrder(prefill, measures), now
        self._graph.probes(worker, prefill, now)
        return turn.order

    def gone_for(self, worker: WorkerId, now: float) -> tuple[WorkerId, ...]:
        """The prefill workers whose links a worker is to forget."""
        node = self._graph.decodes.get(worker)
        if node is None or not node.gone:
            return ()
        return tuple([gone for gone in node.gone if now - self._graph.prefills[gone].gone_at > FORGET_S])

    def speed(self, prefill: WorkerId, decode: WorkerId) -> LinkSpeed | None:
        """The measured speed of a proved link of two workers that report: its own, or else that of its class. None if
        there is none.
        """
        own = self._graph.decodes[decode].links.get(prefill)
        return own if own is not None else self.classes.speed(self._class_of(prefill, decode))

    def doubt_of(self, prefill: WorkerId, decode: WorkerId, now: float) -> tuple[bool, bool, float]:
        """Of a link that is not proved, between workers that report: whether the decode worker proves it now, whether
        it was proved before, and after how many seconds it may be tried again.
        """
        turn = self._turns[decode]
        waits_s = max(turn.next_at - now, turn.failed.get(prefill, now) - now, 0.0)
        return self._graph.decodes[decode].probing == prefill, prefill in turn.suspected, waits_s

    def class_of(self, prefill: WorkerId, decode: WorkerId) -> LinkClass | None:
        """None if one of the workers is gone."""
        return self._class_of(prefill, decode) if prefill in self._nodes and decode in self._nodes else None

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        self._graph.validate()
        assert self._turns.keys() == self._graph.decodes.keys()
        assert self._nodes.keys() == self._turns.keys() | set(self._graph.live)
        for worker, turn in self._turns.items():
            node = self._graph.decodes[worker]
            assert len(turn.wishes) <= MOST_WISHES
            assert not node.links.keys() & (turn.suspected.keys() | turn.wishes.keys())
            assert turn.order is None or turn.order.prefill == node.probing

    # ---- what the reports say

    def _learn(
        self,
        worker: WorkerId,
        turn: _Turn,
        before: dict[WorkerId, LinkSpeed | None],
        links: dict[WorkerId, LinkSpeed | None],
        now: float,
    ) -> None:
        """Links were proved or measured."""
        for prefill, speed in links.items():
            if prefill not in before:
                turn.suspected.pop(prefill, None)
                turn.wishes.pop(prefill, None)
                turn.failed.pop(prefill, None)
            elif speed == before[prefill]:
                continue
            if prefill in self._nodes:
                self._add_class(prefill, worker, speed, now)

    def _add_class(self, prefill: WorkerId, decode: WorkerId, speed: LinkSpeed | None, now: float) -> None:
        its = self._class_of(prefill, decode)
        if self.classes.add(its, speed, now) and speed is not None:
            self._transfers.class_measured(its, speed)

    def _ended(
        self,
        worker: WorkerId,
        turn: _Turn,
        order: LinkOrder,
        before: dict[WorkerId, LinkSpeed | None],
        now: float,
    ) -> None:
        """An order has ended: the link is proved, and measured if that was asked, or the attempt has failed."""
        prefill, links = order.prefill, self._graph.decodes[worker].links
        if order.measures and (its := self.class_of(prefill, worker)) is not None:
            speed = links.get(prefill)
            is_new = speed is not None and speed != before.get(prefill)
            if self.classes.end(its, speed if is_new else None, now) and speed is not None:
                self._transfers.class_measured(its, speed)
        if prefill in links:
            turn.num_failed = 0
            return
        turn.next_at = now + min(MOST_BACK_OFF_S, BACK_OFF_S * 2.0 ** min(turn.num_failed, 10))
        turn.num_failed += 1
        turn.failed = {one: until for one, until in turn.failed.items() if now < until}
        turn.failed[prefill] = now + RETRY_S

    # ---- what to do next

    def _wanted(self, turn: _Turn, now: float) -> WorkerId | None:
        """A link that is doubtful, or that a placement wished for."""
        if turn.suspected:
            turn.suspected = {worker: None for worker in turn.suspected if worker in self._nodes}
            for worker in turn.suspected:
                if self._may_probe(turn, worker, now):
                    return worker
        if turn.wishes:
            turn.wishes = {worker: at for worker, at in turn.wishes.items() if now - at <= WISH_S}
            for worker in reversed(list(turn.wishes)):
                if self._may_probe(turn, worker, now):
                    return worker
        return None

    def _unmeasured(self, worker: WorkerId, turn: _Turn, node: DecodeNode, now: float) -> WorkerId | None:
        """One of the next links, if its class is to be measured and its workers have no requests."""
        if not node.links or not self._is_idle(worker):
            return None
        begin = turn.cursor % len(node.links)
        turn.cursor += LOOKS
        for linked in islice(node.links, begin, begin + LOOKS):
            known = self._graph.prefills[linked]
            is_free = known.is_live and not known.probed_by and self._is_idle(linked)
            if is_free and self.classes.is_due(self._class_of(linked, worker), now):
                return linked
        return None

    def _ahead(self, turn: _Turn, node: DecodeNode, now: float) -> WorkerId | None:
        """A link that is proved in advance: among the next prefill workers, to the one with the fewest links."""
        live = self._graph.live
        is_short = node.num_live < LINKS_AHEAD
        if node.num_live >= len(live) or not (is_short or self._graph.num_short):
            return None
        best: WorkerId | None = None
        fewest = len(self._turns) + PROBES_PER_PREFILL
        for place in range(turn.cursor, turn.cursor + min(LOOKS, len(live))):
            prefill = live[place % len(live)]
            known = self._graph.prefills[prefill]
            num_links = len(known.linked) + len(known.probed_by)
            if num_links >= fewest or prefill in node.links or not (is_short or num_links < LINKS_AHEAD):
                continue
            if self._may_probe(turn, prefill, now):
                best, fewest = prefill, num_links
        turn.cursor = (turn.cursor + LOOKS) % len(live)
        return best

    def _may_probe(self, turn: _Turn, prefill: WorkerId, now: float) -> bool:
        known = self._graph.prefills.get(prefill)
        if known is None or not known.is_live or len(known.probed_by) >= PROBES_PER_PREFILL:
            return False
        return now >= turn.failed.get(prefill, now)

    def _class_of(self, prefill: WorkerId, decode: WorkerId) -> LinkClass:
        (prefill_class, prefill_host), (decode_class, decode_host) = self._nodes[prefill], self._nodes[decode]
        return prefill_class, decode_class, prefill_host == decode_host
