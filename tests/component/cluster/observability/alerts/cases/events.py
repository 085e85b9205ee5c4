"""Cases of the alerts about what must not happen at all."""

from tests.component.cluster.observability.alerts.cases.notation import (
    NONE,
    UP,
    Case,
    series,
)


def happens(alert: str, counter: str, **labels: str) -> list[Case]:
    """The cases of an alert about something that must not happen at all."""
    return [
        Case("it happens", (UP, series(counter, "3x48 4x60", **labels)), {11: NONE, 13: {alert}, 24: NONE}),
        Case(
            "it happens for the first time",
            (UP, series(counter, "0x47 1x60", **labels)),
            {11: NONE, 13: {alert}, 21: {alert}, 24: NONE},
        ),
        Case(
            "a replica misses a scrape after it has happened",
            (UP, series(counter, "3x79 stale 3x120", **labels)),
            {20: NONE, 22: NONE, 30: NONE, 35: NONE, 45: NONE},
        ),
    ]


def has_happened(counter: str, **labels: str) -> list[Case]:
    """The cases in which the counter does not rise."""
    return [
        Case("it has happened long ago", (UP, series(counter, "7x100", **labels)), {5: NONE, 12: NONE, 24: NONE}),
        Case(
            "Prometheus starts anew",
            (('up{job="baton",instance="a"}', "_x48 1x60"), series(counter, "_x48 7x60", **labels)),
            {13: NONE, 18: NONE, 24: NONE},
        ),
        Case(
            "the replica ends, and another one begins",
            (
                UP,
                series(counter, "7x48 stale", replica="a", **labels),
                series(counter, "_x50 0x60", replica="b", **labels),
            ),
            {13: NONE, 18: NONE, 24: NONE},
        ),
        Case("the counter begins anew", (UP, series(counter, "7x48 0x60", **labels)), {13: NONE, 18: NONE, 24: NONE}),
    ]


CASES = {
    "BatonLeasesExpiring": [
        *happens("BatonLeasesExpiring", "baton_leases_ended_total", how="expired"),
        *has_happened("baton_leases_ended_total", how="expired"),
        Case("leases end well", (UP, series("baton_leases_ended_total", "0+5x80", how="released")), {15: NONE}),
    ],
    "BatonTransfersFailing": happens("BatonTransfersFailing", "baton_transfer_failures_total", reason="read_failed"),
    "BatonUsageRecordsLost": [
        *happens("BatonUsageRecordsLost", "baton_usage_records_total", result="lost"),
        *happens("BatonUsageRecordsLost", "baton_usage_records_total", result="refused"),
        Case("records are written", (UP, series("baton_usage_records_total", "0+5x80", result="written")), {15: NONE}),
    ],
    "BatonSettlementsLost": happens("BatonSettlementsLost", "baton_limit_settlements_lost_total"),
    "BatonSafetyEventsLost": [
        *happens("BatonSafetyEventsLost", "baton_safety_events_total", result="lost"),
        Case("a tenant was erased", (UP, series("baton_safety_events_total", "0+5x80", result="erased")), {15: NONE}),
    ],
}
