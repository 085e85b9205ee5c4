"""Cases of the alerts about the metrics, the quality of answers, and the ledger."""

from tests.component.cluster.observability.alerts.cases.notation import (
    HOUR,
    NONE,
    Case,
    differs,
    gappy,
    loop_lag,
    score,
    series,
    usable,
    workers,
)

CASES = {
    "BatonScrapeDown": [
        Case(
            "no answer",
            (('up{job="baton",instance="a"}', "1x20 0x20"), workers("1x20 stale")),
            {7: {"BatonScrapeDown"}},
        ),
        Case(
            "two of three pages are missing",
            (('up{job="baton",instance="a"}', "1x20 " + "0 0 1 " * 40), workers("1x120")),
            {5: NONE, 20: {"BatonScrapeDown"}, 30: {"BatonScrapeDown"}},
        ),
        Case("not scraped at all", (("something_else", "1x40"),), {5: {"BatonScrapeDown"}}),
        Case(
            "one page late",
            (('up{job="baton",instance="a"}', "1x20 0 1x40"), workers("1x60")),
            {5: NONE, 6: NONE, 8: NONE},
        ),
    ],
    "BatonReplicaWithoutMetrics": [
        Case(
            "a replica does not answer",
            (series("baton_scrape_missing", "0x4 1x60", deployment="PrefillWorker"),),
            {4: NONE, 8: {"BatonReplicaWithoutMetrics"}},
        ),
        Case(
            "a replica answers every second time",
            (series("baton_scrape_missing", "0x4 " + "1 0 " * 60, deployment="PrefillWorker"),),
            {4: NONE, 8: {"BatonReplicaWithoutMetrics"}},
        ),
        Case(
            "a replica does not answer once",
            (series("baton_scrape_missing", "0x4 1x4 0x60", deployment="PrefillWorker"),),
            {2: NONE, 8: NONE},
        ),
    ],
    "BatonEventLoopLag": [
        Case(
            "one of two replicas is late in every tenth moment",
            (*loop_lag(10), *loop_lag(0, replica="j")),
            {4: NONE, 7: {"BatonEventLoopLag"}, 30: {"BatonEventLoopLag"}},
        ),
        Case("late in one moment of 200", loop_lag(0.5), {10: NONE, 30: NONE}),
        Case(
            "the replica is gone",
            loop_lag(10, for_samples=40),
            {9: {"BatonEventLoopLag"}, 16: NONE},
        ),
    ],
    "BatonCertificateEnds": [
        Case(
            "in six days",
            (series("baton_certificate_expires_seconds", f"{6 * 86400}x80", deployment="ingress"),),
            {3: NONE, 10: {"BatonCertificateEnds"}},
        ),
        Case(
            "in six days, with gaps",
            (series("baton_certificate_expires_seconds", gappy(6 * 86400), deployment="ingress"),),
            {3: NONE, 10: {"BatonCertificateEnds"}},
        ),
        Case(
            "in two months",
            (series("baton_certificate_expires_seconds", f"{60 * 86400}x80", deployment="ingress"),),
            {10: NONE},
        ),
    ],
    "BatonQualityDrop": [
        Case(
            "two of the last eight answers are wrong",
            (score("1x40 0.875x8 0.75x80"), differs("0x40 1x8 2x80")),
            {9: NONE, 11: {"BatonQualityDoubt"}, 15: {"BatonQualityDoubt", "BatonQualityDrop"}},
        ),
        Case(
            "two of three answers of a young service are wrong",
            (score("_x4 0x8 0x8 0.333333x80"), differs("0x4 1x8 2x90")),
            {3: {"BatonQualityDoubt"}, 7: {"BatonQualityDoubt", "BatonQualityDrop"}},
        ),
        Case(
            "three of the last eight, with gaps",
            (score(gappy(0.625)), differs(f"0 1 2 3x{HOUR}")),
            {3: {"BatonQualityDoubt", "BatonQualityDrop"}, 25: {"BatonQualityDoubt", "BatonQualityDrop"}},
        ),
        Case(
            "the answers are right again",
            (score("0.75x40 0.875x40 1x40"), differs("0 1 2x120")),
            {8: {"BatonQualityDoubt", "BatonQualityDrop"}, 15: {"BatonQualityDoubt"}, 25: NONE},
        ),
    ],
    "BatonQualityQuarantine": [
        Case(
            "one worker",
            (
                series("baton_quality_quarantined_workers", "0x20 1x40 0x40", replica="a"),
                series("baton_quality_quarantined_workers", "0x100", replica="b"),
            ),
            {5: NONE, 6: {"BatonQualityQuarantine"}, 20: NONE},
        ),
    ],
    "BatonQualityDoubt": [
        Case(
            "one of the last eight answers is wrong",
            (score("1x40 0.875x200 1x40"), differs("0x40 1x240")),
            {9: NONE, 30: {"BatonQualityDoubt"}, 59: {"BatonQualityDoubt"}, 65: NONE},
        ),
        Case(
            "the first answer of a young service is wrong",
            (score("_x4 0x20 0.5x20 0.666667x20 0.75x60"), differs("0x4 1x120")),
            {3: {"BatonQualityDoubt"}, 8: {"BatonQualityDoubt"}, 30: {"BatonQualityDoubt"}},
        ),
    ],
    "BatonQualityUnchecked": [
        Case("there is no reference", (usable("none", gappy(0)),), {20: NONE}),
        Case(
            "there is none for an hour",
            (usable("none", f"0x{HOUR}"),),
            {29: NONE, 32: {"BatonQualityUnchecked"}},
        ),
        Case(
            "all workers differ from it, with gaps",
            (usable("learned", " ".join(["0x5 stale"] * 30)),),
            {20: NONE, 35: {"BatonQualityUnchecked"}},
        ),
        Case(
            "it is learned",
            (usable("none", "0x48 stale"), usable("learned", f"_x49 1x{HOUR}")),
            {15: NONE, 35: NONE, 50: NONE},
        ),
        Case(
            "no replica probes any more", (usable("learned", "1x40 stale"),), {15: NONE, 60: {"BatonQualityUnchecked"}}
        ),
        Case(
            "another replica probes",
            (usable("learned", "1x40 stale", replica="a"), usable("learned", f"_x60 1x{HOUR}", replica="b")),
            {15: NONE, 45: NONE, 60: NONE},
        ),
    ],
    "BatonLedgerLag": [
        Case(
            "six minutes",
            (series("baton_ledger_lag_seconds", "0+15x80", replica="i"),),
            {5: NONE, 8: {"BatonLedgerLag"}},
        ),
        Case(
            "an hour, with gaps",
            (series("baton_ledger_lag_seconds", gappy(3600), replica="i"),),
            {3: {"BatonLedgerLag"}, 25: {"BatonLedgerLag"}},
        ),
        Case("some seconds", (series("baton_ledger_lag_seconds", "2x80", replica="i"),), {5: NONE, 15: NONE}),
    ],
}
