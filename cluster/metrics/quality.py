"""Metrics of the quality probe."""

from collections.abc import Iterable, Mapping

from prometheus_client import Counter, Gauge

from cluster.messages.ids import Path

PROBE_SCORE = Gauge(
    "baton_quality_probe_score",
    "Share of right answers among the last ones to probes, by worker and path. 1 if all were as the reference. Workers "
    "that are gone disappear. The ingress replica that probes has it, and no other.",
    ["worker", "path"],
)
LAST_PROBE = Gauge(
    "baton_quality_last_probe_timestamp_seconds",
    "Unix time at which a worker last gave a whole answer to a probe, by worker and path. Probes that failed or did "
    "not run leave it as it is. Workers that are gone disappear. The ingress replica that probes has it, and no other.",
    ["worker", "path"],
)
PROBES = Counter(
    "baton_quality_probes",
    "Probes by result: `agrees` with the reference, `near` it (rounding explains the difference), `differs`, `failed` "
    "(no whole answer), or `skipped` (requests of clients wait, or the worker has no room).",
    ["path", "result"],
)
PROBE_TOKENS = Counter(
    "baton_quality_probe_tokens",
    "Tokens that workers have spent on probes: of prompts that were computed (part `prompt`), and of answers (part "
    "`answer`).",
    ["worker", "part"],
)
REFERENCE_USABLE = Gauge(
    "baton_quality_reference_usable",
    "Whether the reference of the quality probe can judge (1), by its origin: `file`, `learned`, or `none`. 0 while "
    "the first one is learned, if workers do not agree on one, and if all of them differ from it. The ingress replica "
    "that probes has it, and no other.",
    ["origin"],
)
QUARANTINED = Gauge(
    "baton_quality_quarantined_workers",
    "Workers whose probes differ from the reference so often that they get no requests, or would get none if "
    "`quality_probe.quarantine` were `on`.",
)

for _path in Path:
    PROBES.labels(_path, "differs")  # 0 from the start on: `increase` does not see the first increment of a new series


def set_scores(scores: Mapping[tuple[str, str], float]) -> None:
    """Set the scores by worker and path. Those of workers that are gone disappear."""
    PROBE_SCORE.clear()
    for (worker, path), score in scores.items():
        PROBE_SCORE.labels(worker, path).set(score)


def set_last_probes(times: Mapping[tuple[str, str], float]) -> None:
    """Set the Unix times of the last answers by worker and path. Those of workers that are gone disappear."""
    LAST_PROBE.clear()
    for (worker, path), unix_time in times.items():
        LAST_PROBE.labels(worker, path).set(unix_time)


def forget_tokens(workers: Iterable[str]) -> None:
    """Forget what was counted of workers that are gone."""
    for worker in workers:
        for part in ("prompt", "answer"):
            PROBE_TOKENS.remove(worker, part)


def set_reference(origin: str | None, *, is_usable: bool = False) -> None:
    """Set whether there is a reference. `origin`: None if this replica does not probe."""
    REFERENCE_USABLE.clear()
    if origin is not None:
        REFERENCE_USABLE.labels(origin).set(is_usable)
