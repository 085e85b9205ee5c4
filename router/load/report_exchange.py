"""Reports of workers as they are sent: the whole report that a delta stands for, and the replies to it."""

from typing import Final, final

import msgspec

from cluster.messages.reports import REPORT_INTERVAL_S, DeltaReply, ReportDelta, ReportReply, WorkerReport
from router.load.live_workers import LiveWorkers

MOST_SAMPLES_PER_S: Final = 1000.0
"""Samples of steps per second that the model of one kind of engine learns from, of all its workers together. Each takes
some 25 us. Higher costs the Scheduler time; lower follows a change of pace later.
"""


@final
class ReportExchange:
    __slots__ = ("_workers",)

    def __init__(self, workers: LiveWorkers) -> None:
        self._workers = workers

    def whole(self, delta: ReportDelta) -> WorkerReport | None:
        """The report that a delta stands for. None if its standing part is not known."""
        standing = delta.standing
        if standing is None:
            known = self._workers.by_id.get(delta.worker)
            if known is None or known.report.version != delta.version:
                return None
            return msgspec.structs.replace(
                known.report,
                load=delta.load,
                steps=delta.steps,
                transfers=delta.transfers,
                kv_events_through=delta.kv_events_through,
                requests=delta.requests,
                probing=delta.probing,
            )
        return WorkerReport(
            worker=delta.worker,
            pool=standing.pool,
            address=standing.address,
            load=delta.load,
            max_requests=standing.max_requests,
            shape=standing.shape,
            steps=delta.steps,
            transfers=delta.transfers,
            kv_events_through=delta.kv_events_through,
            transport=standing.transport,
            links=standing.links,
            link_failures=standing.link_failures,
            requests=delta.requests,
            version=delta.version,
            probing=delta.probing,
        )

    def reply(self, report: WorkerReport, reply: ReportReply) -> DeltaReply:
        """`report`: the whole one, which was handled. `reply`: to that."""
        num_workers = max(1, self._workers.num_of_kind(report.shape.kind))
        return DeltaReply(
            wants_standing=False,
            wants_kv_snapshot=reply.wants_kv_snapshot,
            wants_requests=reply.wants_requests,
            steps_per_report=MOST_SAMPLES_PER_S * REPORT_INTERVAL_S / num_workers,
            link=reply.link,
            gone=reply.gone,
            kv_events_every_s=reply.kv_events_every_s,
        )
