"""Cases of the alerts about workers, pools and the Scheduler."""

from tests.component.cluster.observability.alerts.cases.notation import (
    NONE,
    Case,
    age,
    cell,
    configured,
    gappy,
    lost,
    series,
    workers,
)

CASES = {
    "BatonWorkerSilent": [
        Case(
            "one of two workers is gone, and does not come back: there is an alert at all times",
            (workers("2x80 1x160"), lost("0x80 1x160"), configured(2)),
            {
                19: NONE,
                21: {"BatonWorkerSilent"},
                30: {"BatonWorkerSilent"},
                32: {"BatonWorkerSilent", "BatonPoolSmall"},
                36: {"BatonPoolSmall"},
                59: {"BatonPoolSmall"},
            },
        ),
        Case(
            "a pool that sizes itself had one more than it wants",
            (workers("3x80 2x160"), lost("0x80 1x160"), series("baton_pool_wanted", "2x240", pool="decode")),
            {19: NONE, 21: {"BatonWorkerSilent"}, 34: {"BatonWorkerSilent"}, 50: NONE},
        ),
        Case(
            "another worker takes its place",
            (workers("2x21 1x5 2x200"), lost("0x21 1x200"), configured(2)),
            {4: NONE, 6: {"BatonWorkerSilent"}, 24: NONE, 40: NONE},
        ),
        Case(
            "the pool was made smaller",
            (workers("2x20 1x60"), lost("0x80"), series("baton_pool_wanted", "2x16 1x70", pool="decode")),
            {6: NONE, 8: NONE, 12: NONE},
        ),
        Case(
            "another Scheduler",
            (
                workers("1x20 stale", replica="a"),
                workers("_x21 1x60", replica="b"),
                lost("3x20 stale", replica="a"),
                lost("_x21 0x60", replica="b"),
                configured(1),
            ),
            {5: NONE, 6: NONE, 8: NONE, 18: NONE},
        ),
        Case(
            "the only worker of a pool is silent, and the Scheduler keeps it",
            (age("d0", "0.2x20 15+15x60"), workers("1x80")),
            {5: NONE, 8: {"BatonWorkerSilent"}},
        ),
    ],
    "BatonPoolEmpty": [
        Case("empty", (workers("1x20 0x60"),), {5: NONE, 7: {"BatonPoolEmpty"}}),
        Case("empty, with gaps", (workers(gappy(0)),), {3: {"BatonPoolEmpty"}, 25: {"BatonPoolEmpty"}}),
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
            "fewer than configured",
            (workers("4x20 3x220"), configured(4)),
            {14: NONE, 17: {"BatonPoolSmall"}, 58: {"BatonPoolSmall"}},
        ),
        Case("fewer than configured, with gaps", (workers(gappy(1)), configured(2)), {8: NONE, 12: {"BatonPoolSmall"}}),
        Case("as small as configured", (workers("4x20 3x220"), configured(3)), {30: NONE, 45: NONE}),
        Case("more than wanted", (workers("4x200"), series("baton_pool_wanted", "2x200", pool="decode")), {45: NONE}),
        Case("grown", (workers("3x100 4x100"), configured(3)), {45: NONE}),
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
            {5: {"BatonKvUsageHigh"}, 7: NONE},
        ),
        Case(
            "97 %, with gaps",
            (series("baton_worker_kv_usage_ratio", gappy(0.97), pool="decode", worker="d0"),),
            {1: NONE, 4: {"BatonKvUsageHigh"}, 28: {"BatonKvUsageHigh"}},
        ),
    ],
    "BatonSchedulerAway": [
        Case(
            "its figures end",
            (workers("1x20 stale"), cell()),
            {5: NONE, 7: {"BatonSchedulerAway"}, 30: {"BatonSchedulerAway"}, 119: {"BatonSchedulerAway"}},
        ),
        Case("it never came", (cell(),), {3: {"BatonSchedulerAway"}}),
        Case(
            "one of two cells, for hours",
            (workers("1x20 stale", cell="a"), workers("1x400", cell="b"), cell(cell="a"), cell(cell="b")),
            {5: NONE, 7: {"BatonSchedulerAway"}, 62: {"BatonSchedulerAway"}, 95: {"BatonSchedulerAway"}},
        ),
        Case(
            "a cell is taken out of the config",
            (workers("1x20 stale", cell="a"), cell("1x20 stale", cell="a"), cell(cell="b"), workers("1x80", cell="b")),
            {5: NONE, 7: NONE, 15: NONE},
        ),
        Case("it is away, with gaps", (cell(gappy(1)),), {3: {"BatonSchedulerAway"}, 25: {"BatonSchedulerAway"}}),
        Case("it misses scrapes", (workers(gappy(1)), cell()), {3: NONE, 15: NONE, 25: NONE}),
        Case(
            "another takes its place",
            (workers("1x20 stale", replica="a"), workers("_x22 1x80", replica="b"), cell()),
            {5: NONE, 6: NONE, 8: NONE},
        ),
    ],
}
