"""A worker's reports as they are sent: what has not changed since the Scheduler has had it is left out. Pure."""

import msgspec

from cluster.messages.reports import DeltaReply, ReportDelta, ReportReply, StandingReport, StepSample, WorkerReport

FIRST_STEPS = 8.0
"""Samples of steps in a report before the Scheduler has said how many it takes."""
MOST_CREDIT = 16.0
"""Samples that reports without steps leave to later ones, at most. Higher sends more at once after a pause; lower sends
fewer than the Scheduler takes where steps are rare.
"""


class ReportDeltas:
    """The deltas of one worker, to whatever Scheduler process answers."""

    def __init__(self) -> None:
        self._standing: StandingReport | None = None
        self._version = 0
        self._is_known = False
        """Whether a Scheduler process has replied to this version of the standing part."""
        self._steps_per_report = FIRST_STEPS
        self._credit = 0.0

    def delta(self, report: WorkerReport) -> ReportDelta:
        """The report as it is to be sent."""
        standing = StandingReport(
            report.pool,
            report.address,
            report.max_requests,
            report.shape,
            report.transport,
            report.links,
            report.link_failures,
        )
        if standing != self._standing:
            self._standing, self._version, self._is_known = standing, self._version + 1, False
        return ReportDelta(
            report.worker,
            self._version,
            None if self._is_known else standing,
            report.load,
            self._sampled(report.steps),
            report.transfers,
            report.kv_events_through,
            report.requests,
            report.probing,
        )

    def whole(self, delta: ReportDelta) -> ReportDelta:
        """The same report with the standing part, for a Scheduler that does not have it."""
        return msgspec.structs.replace(delta, standing=self._standing)

    def reply(self, reply: DeltaReply) -> ReportReply:
        """The reply to a report that the Scheduler has taken."""
        self._is_known = True
        self._steps_per_report = reply.steps_per_report
        return ReportReply(
            link=reply.link,
            gone=reply.gone,
            wants_kv_snapshot=reply.wants_kv_snapshot,
            wants_requests=reply.wants_requests,
            kv_events_every_s=reply.kv_events_every_s,
        )

    def _sampled(self, steps: list[StepSample]) -> list[StepSample]:
        """As many as the Scheduler takes, evenly spaced."""
        self._credit = min(MOST_CREDIT, self._credit + self._steps_per_report)
        num = min(len(steps), int(self._credit))
        self._credit -= num
        return [steps[(2 * place + 1) * len(steps) // (2 * num)] for place in range(num)]
