"""Cases of the alerts that clients feel."""

from tests.component.cluster.observability.alerts.cases.notation import (
    HOUR,
    MINUTE,
    NONE,
    Case,
    a_minute,
    goodput,
    prompt_tokens,
    requests,
    steps,
    ttft,
)

BOTH = {"BatonGoodputLow", "BatonClassGoodputLow"}
NOTHING = {"BatonNothingGood", "BatonClassNothingGood"}
ONE_GOOD = goodput("good", f"0 1x{2 * HOUR}")
"""A good request, so that not all are bad."""

CASES = {
    "BatonGoodputLow": [
        Case("60 % are good", (goodput("good", "0+6x80"), goodput("ttft_missed", "0+4x80")), {4: NONE, 12: BOTH}),
        Case("nothing is good", (goodput("rejected", "0+4x80"),), {12: BOTH | NOTHING}),
        Case("90 % are good", (goodput("good", "0+9x80"), goodput("failed", "0+1x80")), {12: NONE, 20: NONE}),
        Case(
            "few requests", (ONE_GOOD, goodput("failed", "0 0 0 0+1x2 3 3 3+1x3 6x70")), {5: NONE, 10: NONE, 15: NONE}
        ),
        Case(
            "60 % are good, and every seventh sample is missing",
            (
                goodput("good", " ".join(f"{number}+6x5 stale" for number in range(0, 17 * 42, 42))),
                goodput("ttft_missed", " ".join(f"{number}+4x5 stale" for number in range(0, 17 * 28, 28))),
            ),
            {4: NONE, 12: BOTH, 28: BOTH},
        ),
        Case(
            "one bad request a minute",
            (ONE_GOOD, goodput("failed", a_minute(1, 30))),
            {12: NONE, 25: NONE},
        ),
        Case(
            "a short dip",
            (goodput("good", steps((10, 10), (0, 3), (10, 20))), goodput("failed", steps((0, 10), (10, 3), (0, 20)))),
            {12: NONE, 15: NONE, 18: NONE, 30: NONE},
        ),
        Case(
            "a burst of bad requests, and no traffic after it",
            (ONE_GOOD, goodput("failed", steps((30, 1), (0, 30)))),
            {2: NONE, 4: NONE, 6: NONE, 7: NONE, 12: NONE},
        ),
        Case(
            "the traffic stops: it ends with the window of the rates",
            (ONE_GOOD, goodput("failed", steps((10, 4), (0, 30)))),
            {10: NONE, 12: NONE, 30: NONE},
        ),
        Case(
            "the traffic stops when it has fired",
            (ONE_GOOD, goodput("failed", steps((10, 12), (0, 30)))),
            {12: BOTH, 18: NONE},
        ),
        Case(
            "all series end when it has fired",
            (ONE_GOOD, goodput("failed", steps((10, 12)) + " stale")),
            {11: BOTH, 18: NONE},
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
            (
                goodput("good", "0+100x80"),
                goodput("good", "0 1x80", "interactive"),
                goodput("tpot_missed", steps((1, 3), (0, 17)), "interactive"),
            ),
            {8: NONE, 12: NONE},
        ),
    ],
    "BatonNothingGood": [
        Case("one request a minute fails", (goodput("failed", a_minute(1, 60)),), {3: NONE, 8: NOTHING, 55: NOTHING}),
        Case(
            "the last good one was an hour ago",
            (goodput("good", f"0+1x{MINUTE} 5x{HOUR}"), goodput("ttft_missed", a_minute(1, 60))),
            {8: NONE, 25: NONE, 40: NOTHING},
        ),
        Case("four failed", (goodput("failed", "0+1x4 4x120"),), {3: NONE, 12: NONE, 29: NONE}),
        Case(
            "the good one is the first of its series",
            (goodput("good", "_x4 1x200"), goodput("failed", a_minute(1, 25))),
            {8: NONE, 15: NONE, 24: NONE},
        ),
        Case(
            "it ends half an hour after the last one",
            (goodput("failed", steps((2, 3), (0, 60))),),
            {4: NOTHING, 25: NOTHING, 36: NONE},
        ),
    ],
    "BatonClassNothingGood": [
        Case(
            "one class fails beside another that is well",
            (goodput("good", "0+9x200"), goodput("failed", a_minute(1, 60), "interactive")),
            {3: NONE, 12: {"BatonClassNothingGood"}, 40: {"BatonClassNothingGood"}},
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
    "BatonMostAborted": [
        Case(
            "60 %",
            (requests("finished", "0+4x120"), requests("aborted", "0+6x120")),
            {8: NONE, 20: {"BatonAbortsHigh", "BatonMostAborted"}},
        ),
        Case(
            "every client leaves",
            (requests("finished", f"0+9x40 360x{HOUR}"), requests("aborted", f"0x40 0+9x{HOUR}")),
            {10: NONE, 30: {"BatonAbortsHigh", "BatonMostAborted"}, 65: {"BatonAbortsHigh", "BatonMostAborted"}},
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
            "handoffs fail, and prompts that were in a cache are computed on the decode worker, too",
            (
                requests("finished", "0+8x200"),
                prompt_tokens("prefill", "computed", "0+1000x200"),
                prompt_tokens("prefill", "local", "0+9000x200"),
                prompt_tokens("decode", "computed", "0+10000x200"),
            ),
            {25: NONE, 45: NONE},
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
}
