"""Decode workers as the Scheduler sees them: they report, obey its orders, and take a time for each probe."""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable

import msgspec

from cluster.messages.ids import WorkerId
from cluster.messages.reports import REPORT_INTERVAL_S, LinkOrder, ReportReply, WorkerReport
from cluster.messages.transport import LinkSpeed
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_prefill_report

SMALL_PREFILLS, MEASURING_PREFILLS = 1, 9
"""Prefills of a proof and of a measurement (decode/link_probe.py)."""
SPEED = LinkSpeed(0.001, 1e9)


class DecodeWorker:
    """Its part of the conversation about links (decode/proven_links.py)."""

    def __init__(self, report: WorkerReport) -> None:
        self.report = report
        self.ends_at = 0.0
        self.order: LinkOrder | None = None

    def finish(self, now: float, failing: set[tuple[str, str]]) -> None:
        """End the probe that is over."""
        if (order := self.order) is None or now < self.ends_at:
            return
        self.order = None
        links = self.report.links
        if (order.prefill, self.report.worker) not in failing:
            speed = SPEED if order.measures else links.get(order.prefill)
            links = links | {order.prefill: speed}
        self.report = msgspec.structs.replace(self.report, links=links, probing=None)

    def obey(self, reply: ReportReply, now: float, probe_s: float) -> LinkOrder | None:
        """The order that it begins to carry out."""
        if reply.gone:
            links = {prefill: speed for prefill, speed in self.report.links.items() if prefill not in reply.gone}
            self.report = msgspec.structs.replace(self.report, links=links)
        if reply.link is None or self.order is not None:
            return None
        self.order, self.ends_at = reply.link, now + probe_s * (2 if reply.link.measures else 1)
        self.report = msgspec.structs.replace(self.report, probing=reply.link.prefill)
        return reply.link


class LinkCluster:
    """Workers that report four times a second to one Scheduler after another."""

    def __init__(self, num_prefill: int, num_decode: int, probe_s: float = 1.0) -> None:
        self.state = RouterState()
        self.now = 0.0
        self.probe_s = probe_s
        self.failing: set[tuple[str, str]] = set()
        """Pairs that cannot hand over."""
        self.prefills: dict[WorkerId, WorkerReport] = {}
        self.decodes: dict[WorkerId, DecodeWorker] = {}
        self.num_prefills = 0
        """Prefills that the probes have cost."""
        self.measured: list[tuple[WorkerId, WorkerId]] = []
        self.most_probes: Counter[WorkerId] = Counter()
        """Probes at the same time, at most, of each prefill worker."""
        self._turn = itertools.count()
        self._due: list[tuple[float, int, WorkerId]] = []
        for number in range(num_prefill):
            self.add(f"p{number}", number / num_prefill)
        for number in range(num_decode):
            self.add(f"d{number}", number / num_decode)

    def add(self, name: str, share: float = 0.0, change: Callable[[WorkerReport], WorkerReport] = lambda r: r) -> None:
        """`share`: of the interval between two reports, before the first one."""
        worker = WorkerId(name)
        if name.startswith("p"):
            self.prefills[worker] = change(a_prefill_report(name))
        else:
            self.decodes[worker] = DecodeWorker(change(a_decode_report(name, "")))
        heapq.heappush(self._due, (self.now + share * REPORT_INTERVAL_S, next(self._turn), worker))

    def kill(self, name: str) -> None:
        self.prefills.pop(WorkerId(name), None)
        self.decodes.pop(WorkerId(name), None)

    def run(self, seconds: float, at_report: Callable[[], None] = lambda: None) -> None:
        until = self.now + seconds
        while self._due and self._due[0][0] < until:
            self.now, _, worker = heapq.heappop(self._due)
            if worker in self.prefills:
                self._exchange(self.prefills[worker])
            elif (decode := self.decodes.get(worker)) is not None:
                decode.finish(self.now, self.failing)
                self._count(decode.obey(self._exchange(decode.report), self.now, self.probe_s), worker)
            else:
                continue
            at_report()
            heapq.heappush(self._due, (self.now + REPORT_INTERVAL_S, next(self._turn), worker))
        self.now = until

    def links(self, worker: str) -> dict[WorkerId, LinkSpeed | None]:
        return self.decodes[WorkerId(worker)].report.links

    def num_links(self) -> int:
        return sum(len(decode.report.links) for decode in self.decodes.values())

    def _exchange(self, report: WorkerReport) -> ReportReply:
        self.state.handle(report, self.now)
        return self.state.reply_to(report, self.now)

    def _count(self, order: LinkOrder | None, worker: WorkerId) -> None:
        if order is None:
            return
        is_new = order.prefill not in self.links(worker)
        self.num_prefills += SMALL_PREFILLS * is_new + MEASURING_PREFILLS * order.measures
        if order.measures:
            self.measured.append((order.prefill, worker))
        probed = Counter(decode.order.prefill for decode in self.decodes.values() if decode.order is not None)
        self.most_probes |= probed
