"""Metrics of the screening of requests and answers, and of its audit log."""

from prometheus_client import Counter, Gauge

SAFETY_DECISIONS = Counter(
    "baton_safety_decisions",
    "Texts of requests and answers that were screened, by direction and action: passed, masked, blocked, cut, ...",
    ["direction", "action"],
)
SAFETY_FAILURES = Counter(
    "baton_safety_stage_failures", "Texts that a stage of the screening has not scanned although it should.", ["stage"]
)
SAFETY_EVENTS = Counter(
    "baton_safety_events",
    "Events for the audit log of safety decisions, by what became of them: written, lost because too many wait, or "
    "dropped because their tenant was erased.",
    ["result"],
)
SAFETY_EVENTS_WAITING = Gauge("baton_safety_events_waiting", "Safety events that wait to be written into PostgreSQL.")

SAFETY_EVENTS.labels("lost")  # 0 from the start on: `increase` does not see the first increment of a new series
