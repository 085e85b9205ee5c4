"""Each alert on series that are made for it: when it must fire, and when it must not. Samples are 15 s apart."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster.observability.alerts.alert import AlertGroup
from cluster.observability.alerts.rules import rules
from cluster.observability.alerts.table import GROUPS
from tests.component.monitoring import check_rules

MINUTE = 4
"""Samples."""
HOUR = 60 * MINUTE
UP = ('up{job="baton",instance="a"}', f"1x{2 * HOUR}")

Series = tuple[str, str]
"""A series and its values in promtool's notation: `0+2x8` rises by 2 eight times, `_` is no sample."""


class Case(msgspec.Struct, frozen=True):
    what: str
    series: tuple[Series, ...]
    fires: dict[int, set[str]]
    """The alerts that fire, by minute."""


def series(name: str, values: str, **labels: str) -> Series:
    shown = {"job": "baton", "instance": "a", "model": "m", **labels}
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in shown.items()) + "}", values


def goodput(result: str, values: str, slo_class: str = "standard", **labels: str) -> Series:
    return series("baton_goodput_requests_total", values, result=result, slo_class=slo_class, path="D", **labels)


def ttft(slo_class: str, per_sample: dict[str, int], for_samples: int = HOUR) -> tuple[Series, ...]:
    """`per_sample`: the requests of 15 s up to each bound."""
    name, labels = "baton_time_to_first_token_seconds", {"slo_class": slo_class, "path": "D"}
    buckets = [
        series(f"{name}_bucket", f"0+{number}x{for_samples}", le=le, **labels) for le, number in per_sample.items()
    ]
    return (*buckets, series(f"{name}_count", f"0+{per_sample['+Inf']}x{for_samples}", **labels))


def workers(values: str, pool: str = "decode", **labels: str) -> Series:
    return series("baton_workers", values, pool=pool, deployment="scheduler", **labels)


def age(worker: str, values: str) -> Series:
    return series("baton_worker_report_age_seconds", values, pool="decode", worker=worker)


def requests(outcome: str, values: str) -> Series:
    return series("baton_requests_total", values, outcome=outcome, path="D", slo_class="standard")


def prompt_tokens(role: str, source: str, values: str) -> Series:
    return series("baton_request_prompt_tokens_total", values, role=role, source=source)


def steps(*parts: tuple[int, int], start: int = 0) -> str:
    """A counter that rises by a number in each sample, for a number of minutes, and so on."""
    texts, value = [], start
    for rise, minutes in parts:
        texts.append(f"{value}+{rise}x{minutes * MINUTE - 1}")
        value += rise * minutes * MINUTE
    return " ".join(texts)


BOTH = {"BatonGoodputLow", "BatonClassGoodputLow"}
NONE = set[str]()

CASES = {
    "BatonGoodputLow": [
        Case("60 % are good", (goodput("good", "0+6x80"), goodput("ttft_missed", "0+4x80")), {4: NONE, 12: BOTH}),
        Case("nothing is good", (goodput("rejected", "0+4x80"),), {12: BOTH}),
        Case("90 % are good", (goodput("good", "0+9x80"), goodput("failed", "0+1x80")), {12: NONE, 20: NONE}),
        Case("few requests", (goodput("failed", "0 0 0 0+1x2 3 3 3+1x3 6x70"),), {5: NONE, 10: NONE, 15: NONE}),
        Case(
            "one bad request a minute",
            (goodput("failed", " ".join(f"{minute} {minute} {minute} {minute}" for minute in range(30))),),
            {12: NONE, 25: NONE},
        ),
        Case(
            "a short dip",
            (goodput("good", steps((10, 10), (0, 3), (10, 20))), goodput("failed", steps((0, 10), (10, 3), (0, 20)))),
            {12: NONE, 15: NONE, 18: NONE, 30: NONE},
        ),
        Case(
            "a burst of bad requests, and no traffic after it",
            (goodput("failed", steps((30, 1), (0, 30))),),
            {2: NONE, 4: NONE, 6: NONE, 7: NONE, 12: NONE},
        ),
        Case(
            "the traffic stops: it ends with the window of the rates",
            (goodput("failed", steps((10, 4), (0, 30))),),
            {10: NONE, 12: NONE, 30: NONE},
        ),
        Case(
            "the traffic stops when it has fired", (goodput("failed", steps((10, 12), (0, 30))),), {12: BOTH, 18: NONE}
        ),
        Case(
            "all series end when it has fired", (goodput("failed", steps((10, 12)) + " stale"),), {11: BOTH, 18: NONE}
        ),
        Case(
            "counters begin anew",
            (goodput("good", f"{steps((10, 10))} {steps((10, 20))}"), goodput("failed", f"500x39 {steps((0, 20))}")),
            {9: NONE, 12: NONE, 16: NONE, 25: NONE},
        ),
        Case(
            "another replica goes on",
            (
                goodput("good", f"{steps((10, 10))} stale", replica="a"),
                goodput("failed", f"{steps((1, 10))} stale", replica="a"),
                goodput("good", f"_x{10 * MINUTE} {steps((10, 20))}", replica="b"),
                goodput("failed", f"_x{10 * MINUTE} {steps((1, 20))}", replica="b"),
            ),
            {9: NONE, 11: NONE, 16: NONE, 25: NONE},
        ),
    ],
    "BatonClassGoodputLow": [
        Case(
            "the interactive class is bad beside many good requests",
            (
                goodput("good", "0+100x80"),
                goodput("good", "0+2x80", "interactive"),
                goodput("tpot_missed", "0+8x80", "interactive"),
            ),
            {12: {"BatonClassGoodputLow"}},
        ),
        Case(
            "the interactive class is bad and small",
            (goodput("good", "0+100x80"), goodput("tpot_missed", steps((1, 3), (0, 17)), "interactive")),
            {8: NONE, 12: NONE},
        ),
    ],
    "BatonTtftHigh": [
        Case(
            "interactive late", ttft("interactive", {"1.0": 8, "2.5": 10, "+Inf": 10}), {4: NONE, 12: {"BatonTtftHigh"}}
        ),
        Case("standard late", ttft("standard", {"1.0": 8, "2.5": 10, "+Inf": 10}), {12: {"BatonTtftHigh"}}),
        Case("one in a hundred late", ttft("interactive", {"1.0": 99, "2.5": 100, "+Inf": 100}), {12: NONE, 30: NONE}),
        Case(
            "batch may take long", ttft("batch", {"1.0": 1, "30.0": 10, "60.0": 10, "+Inf": 10}), {12: NONE, 30: NONE}
        ),
        Case("batch takes too long", ttft("batch", {"30.0": 5, "60.0": 10, "+Inf": 10}), {12: {"BatonTtftHigh"}}),
        Case("batch takes longer than all buckets", ttft("batch", {"60.0": 5, "+Inf": 10}), {12: {"BatonTtftHigh"}}),
        Case("few requests", ttft("interactive", {"1.0": 0, "2.5": 15, "+Inf": 15}, 1), {5: NONE, 12: NONE}),
        Case(
            "the traffic stops",
            ttft("interactive", {"1.0": 0, "2.5": 10, "+Inf": 10}, 12 * MINUTE),
            {12: {"BatonTtftHigh"}, 19: NONE},
        ),
    ],
    "BatonAbortsHigh": [
        Case(
            "20 %",
            (requests("finished", "0+8x120"), requests("aborted", "0+2x120")),
            {8: NONE, 20: {"BatonAbortsHigh"}},
        ),
        Case("5 %", (requests("finished", "0+19x120"), requests("aborted", "0+1x120")), {20: NONE, 29: NONE}),
        Case("few", (requests("aborted", "0 0 0 0 0+1x2 3x100"),), {5: NONE, 20: NONE}),
        Case(
            "five minutes alone",
            (requests("finished", "0+8x120"), requests("aborted", steps((0, 10), (2, 5), (0, 15)))),
            {15: NONE, 20: NONE, 25: NONE},
        ),
    ],
    "BatonPrefixHitsLow": [
        Case(
            "80 % are computed",
            (
                requests("finished", "0+8x200"),
                prompt_tokens("decode", "computed", "0+8000x200"),
                prompt_tokens("decode", "local", "0+2000x200"),
            ),
            {14: NONE, 25: {"BatonPrefixHitsLow"}},
        ),
        Case(
            "all are computed",
            (requests("finished", "0+8x200"), prompt_tokens("decode", "computed", "0+8000x200")),
            {25: {"BatonPrefixHitsLow"}},
        ),
        Case(
            "half are computed",
            (
                requests("finished", "0+8x200"),
                prompt_tokens("decode", "computed", "0+5000x200"),
                prompt_tokens("decode", "offloaded", "0+5000x200"),
            ),
            {25: NONE, 45: NONE},
        ),
        Case(
            "prompts that are handed over, mostly from the caches of prefill workers",
            (
                requests("finished", "0+8x200"),
                prompt_tokens("prefill", "computed", "0+2000x200"),
                prompt_tokens("prefill", "local", "0+8000x200"),
                prompt_tokens("decode", "pulled", "0+9990x200"),
                prompt_tokens("decode", "computed", "0+10x200"),
            ),
            {25: NONE, 45: NONE},
        ),
        Case(
            "prompts that are handed over, and computed",
            (
                requests("finished", "0+8x200"),
                prompt_tokens("prefill", "computed", "0+9990x200"),
                prompt_tokens("decode", "pulled", "0+9990x200"),
                prompt_tokens("decode", "computed", "0+10x200"),
            ),
            {25: {"BatonPrefixHitsLow"}},
        ),
        Case(
            "few requests",
            (requests("finished", "0+1x5 5x200"), prompt_tokens("decode", "computed", "0+8000x5 40000x200")),
            {16: NONE, 25: NONE},
        ),
        Case(
            "the traffic stops",
            (
                requests("finished", steps((8, 25), (0, 20))),
                prompt_tokens("decode", "computed", steps((8000, 25), (0, 20))),
            ),
            {25: {"BatonPrefixHitsLow"}, 32: NONE},
        ),
    ],
    "BatonWorkerSilent": [
        Case(
            "one of two workers is gone, and does not come back",
            (age("d0", "0.2x160"), age("d1", "0.2x80 5 stale"), workers("2x81 1x60")),
            {20: NONE, 22: {"BatonWorkerSilent"}, 27: {"BatonWorkerSilent"}},
        ),
        Case(
            "another worker takes its place",
            (
                age("d0", "0.2x80"),
                age("d1", "0.2x20 5 stale"),
                age("d2", "_x27 0.2x60"),
                workers("2x21 1x5 2x60"),
            ),
            {6: NONE, 8: NONE, 12: NONE},
        ),
        Case(
            "the pool was made smaller",
            (
                age("d0", "0.2x80"),
                age("d1", "0.2x20 stale"),
                workers("2x20 1x60"),
                series("baton_pool_wanted", "2x16 1x70", pool="decode"),
            ),
            {6: NONE, 8: NONE, 12: NONE},
        ),
        Case(
            "a rolling update",
            (
                age("d0", "0.2x20 stale"),
                age("d1", "_x16 0.2x60"),
                workers("1x16 2x4 1x60"),
            ),
            {4: NONE, 6: NONE, 8: NONE, 12: NONE},
        ),
        Case(
            "another Scheduler",
            (
                age("d0", "0.2x80"),
                workers("1x20 stale", replica="a"),
                workers("_x21 1x60", replica="b"),
            ),
            {5: NONE, 6: NONE, 8: NONE},
        ),
        Case(
            "the only worker of a pool is silent, and the Scheduler keeps it",
            (age("d0", "0.2x20 15+15x60"), workers("1x80")),
            {8: {"BatonWorkerSilent"}},
        ),
    ],
    "BatonPoolEmpty": [
        Case("empty", (workers("1x20 0x60"),), {5: NONE, 7: {"BatonPoolEmpty"}}),
        Case("empty for a moment", (workers("1x20 0x2 1x60"),), {5: NONE, 6: NONE, 8: NONE}),
        Case("the other pool", (workers("1x60", "prefill"), workers("2x60")), {10: NONE}),
        Case(
            "it sizes itself, and wants none",
            (workers("1x20 0x60"), series("baton_pool_wanted", "1x18 0x60", pool="decode")),
            {7: NONE, 15: NONE},
        ),
    ],
    "BatonPoolSmall": [
        Case(
            "fewer than wanted",
            (workers("2x200"), series("baton_pool_wanted", "2x4 3x196", pool="decode")),
            {10: NONE, 20: {"BatonPoolSmall"}},
        ),
        Case(
            "fewer than there were",
            (workers("4x200 3x200"),),
            {55: NONE, 70: {"BatonPoolSmall"}},
        ),
        Case("more than wanted", (workers("4x200"), series("baton_pool_wanted", "2x200", pool="decode")), {45: NONE}),
        Case("grown", (workers("3x100 4x100"),), {45: NONE}),
    ],
    "BatonKvUsageHigh": [
        Case(
            "97 %",
            (series("baton_worker_kv_usage_ratio", "0.5x4 0.97x60", pool="decode", worker="d0"),),
            {2: NONE, 5: {"BatonKvUsageHigh"}},
        ),
        Case(
            "97 % for a minute",
            (series("baton_worker_kv_usage_ratio", "0.5x4 0.97x4 0.9x60", pool="decode", worker="d0"),),
            {2: NONE, 4: NONE, 10: NONE},
        ),
        Case(
            "the worker is gone",
            (series("baton_worker_kv_usage_ratio", "0.97x20 stale", pool="decode", worker="d0"),),
            {5: {"BatonKvUsageHigh"}, 6: NONE},
        ),
    ],
    "BatonSchedulerAway": [
        Case(
            "its figures end",
            (workers("1x20 stale"), UP),
            {5: NONE, 7: {"BatonSchedulerAway"}, 30: {"BatonSchedulerAway"}},
        ),
        Case("it never came", (UP,), {3: {"BatonSchedulerAway"}}),
        Case(
            "it is away for hours",
            (workers("1x20 stale"), UP),
            {64: {"BatonSchedulerAway"}, 90: {"BatonSchedulerAway"}},
        ),
        Case(
            "one of two cells",
            (workers("1x20 stale", cell="a"), workers("1x80", cell="b"), UP),
            {5: NONE, 7: {"BatonSchedulerAway"}},
        ),
        Case(
            "another takes its place",
            (workers("1x20 stale", replica="a"), workers("_x22 1x80", replica="b"), UP),
            {5: NONE, 6: NONE, 8: NONE},
        ),
    ],
    "BatonScrapeDown": [
        Case(
            "no answer",
            (('up{job="baton",instance="a"}', "1x20 0x20"), workers("1x20 stale")),
            {7: {"BatonScrapeDown"}},
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
            "a replica does not answer once",
            (series("baton_scrape_missing", "0x4 1x4 0x60", deployment="PrefillWorker"),),
            {2: NONE, 8: NONE},
        ),
    ],
    "BatonCertificateEnds": [
        Case(
            "in six days",
            (series("baton_certificate_expires_seconds", f"{6 * 86400}x80", deployment="ingress"),),
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
            "answers differ",
            (series("baton_quality_probe_score", "1x8 0.9x80", worker="d0", path="D"),),
            {4: NONE, 10: {"BatonQualityDrop"}},
        ),
        Case(
            "one probe differs",
            (series("baton_quality_probe_score", "1x8 0.9x4 1x80", worker="d0", path="D"),),
            {4: NONE, 10: NONE},
        ),
        Case(
            "nearly all answers are right",
            (series("baton_quality_probe_score", "0.96x80", worker="d0", path="D"),),
            {15: NONE},
        ),
    ],
    "BatonLedgerLag": [
        Case(
            "six minutes",
            (series("baton_ledger_lag_seconds", "0+15x80", replica="i"),),
            {5: NONE, 8: {"BatonLedgerLag"}},
        ),
        Case("some seconds", (series("baton_ledger_lag_seconds", "2x80", replica="i"),), {5: NONE, 15: NONE}),
    ],
}


def happens(alert: str, counter: str, **labels: str) -> list[Case]:
    """The cases of an alert about something that must not happen at all."""
    return [
        Case("it happens", (UP, series(counter, "3x48 4x60", **labels)), {11: NONE, 13: {alert}, 24: NONE}),
        Case(
            "it happens for the first time: there was no series",
            (UP, series(counter, "_x48 1x60", **labels)),
            {11: NONE, 13: {alert}, 21: {alert}, 24: NONE},
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


CASES |= {
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


def unit_test(case: Case) -> dict[str, Any]:
    given = list(case.series)
    if not any(name.startswith(("up{", "something_else")) for name, _ in given):
        given.append(UP)
    return {
        "name": case.what,
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in given],
        "promql_expr_test": list(questions(case.fires)),
    }


def questions(fires: dict[int, set[str]]) -> Iterable[dict[str, Any]]:
    for minute, names in fires.items():
        yield {
            "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
        }


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_alerts_fire_when_they_must_and_others_of_their_group_do_not(group: AlertGroup, tmp_path: Path) -> None:
    """All groups together take ten times as long. They are together in `test_monitoring.py`."""
    (tmp_path / "rules.yml").write_text(rules([group], "docs"))
    cases = [case for alert in group.alerts for case in CASES[alert.name]]
    assert all(CASES[alert.name] for alert in group.alerts)
    check_rules(tmp_path, [unit_test(case) for case in cases], tmp_path / "rules.yml")
