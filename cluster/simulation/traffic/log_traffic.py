"""The requests of a Scheduler's stimulus log as traffic: their arrivals, lengths, classes, tenants and shared prefixes.

The log has the key of each KV block of the engines. A key stands for the whole prompt up to its block, so every key at
the end of BLOCK_TOKENS tokens is the hash that the simulator needs. Answers that the log has no length of (of requests
that were refused, or were running at its end) get the median length of those that finished.
"""

import statistics
from pathlib import Path

from cluster.messages.ids import RequestId
from cluster.messages.scheduler_events import RequestClosed
from cluster.simulation.traffic.workload import BLOCK_TOKENS, Arrival
from router.recording.records import PlacementAsked, Reported, ReportedWhole, Told
from router.replay.log_reader import FileEnded, NoLog, log_files, records_of

BLOCK_SIZE = 16
"""Tokens of a KV block if the log has no report that says it: vLLM's default."""
LEAST_REQUESTS = 10
"""Requests of the shortest log that is simulated. More refuses short logs; fewer makes rates of chance."""


class _Traffic:
    def __init__(self) -> None:
        self._asked: dict[tuple[str, RequestId], tuple[float, PlacementAsked]] = {}
        """The first placement that each request asked a Scheduler process for, with its arrival as Unix time."""
        self._outputs: dict[tuple[str, RequestId], int] = {}
        self._block_size = BLOCK_SIZE

    def note(self, record: object, run: str, wall_s: float) -> None:
        match record:
            case PlacementAsked(request=request) if (run, request.request_id) not in self._asked:
                self._asked[run, request.request_id] = wall_s - request.age_s, record
            case Told(event=RequestClosed(request_id=request_id, num_output_tokens=int(number))) if number:
                self._outputs[run, request_id] = number
            case Reported(delta=delta) if delta.standing is not None:
                self._block_size = delta.standing.shape.block_size
            case ReportedWhole(report=report):
                self._block_size = report.shape.block_size

    def arrivals(self) -> list[Arrival]:
        usual = round(statistics.median(self._outputs.values())) if self._outputs else 1
        every = max(1, BLOCK_TOKENS // self._block_size)
        first_s = min((at for at, _ in self._asked.values()), default=0.0)
        rows = [
            Arrival(
                arrival_s=at - first_s,
                num_prompt=asked.request.num_prompt_tokens,
                num_output=max(1, self._outputs.get(key, usual) // asked.request.num_sequences),
                block_hashes=asked.request.block_hashes[every - 1 :: every],
                tenant=asked.request.tenant,
                slo_class=asked.request.slo_class,
            )
            for key, (at, asked) in self._asked.items()
        ]
        return sorted(rows, key=lambda row: row.arrival_s)


def read_log(path: Path) -> list[Arrival]:
    """All requests of a log, in order of arrival. The first one arrives at 0.

    Raises:
        NoLog: The log cannot be read, or has too few requests.
        OSError: The path cannot be read.
    """
    traffic = _Traffic()
    for file in log_files(path)[0]:
        now = file.header.loop_s
        for record in records_of(file):
            if not isinstance(record, FileEnded):
                now = getattr(record, "now", now)
                traffic.note(record, file.header.run, file.header.wall_time(now))
    rows = traffic.arrivals()
    if len(rows) < LEAST_REQUESTS:
        raise NoLog(f"{path} has {len(rows)} requests, and at least {LEAST_REQUESTS} are needed")
    return rows
