"""Records and reports that tests are about."""

from array import array
from typing import Any

from cluster.load.record import GeneratorFigures, LoadEnding, LoadRecord
from cluster.load.report.document import LoadReport, LoadSetup, PromisedTimes
from cluster.load.report.figures import LoadFigures, figures
from cluster.messages.ids import SloClass
from cluster.messages.placement import Slo

CALM = GeneratorFigures(cpu_share=0.1, loop_lag_p99_s=0.001, loop_lag_max_s=0.002, loop_late_share=0.0, most_open=3)
SLOS = {slo_class: Slo(1.0, 0.1) for slo_class in SloClass}


def record(number: int = 0, **changes: Any) -> LoadRecord:
    """A request that finished: TTFT 0.5 s, and 11 tokens at 0.05 s each."""
    fields: dict[str, Any] = {
        "number": number,
        "due_s": float(number),
        "ended_s": number + 1.0,
        "ending": LoadEnding.FINISHED,
        "status": 200,
        "ttft_s": 0.5,
        "tpot_s": 0.05,
        "e2e_s": 1.0,
        "gaps": array("f", [0.05] * 10).tobytes(),
        "planned_prompt": 100,
        "num_prompt": 100,
        "planned_output": 11,
        "num_output": 11,
    }
    return LoadRecord(**(fields | changes))


def refused(number: int = 0, **changes: Any) -> LoadRecord:
    return without_tokens(number, LoadEnding.REFUSED, status=429, error="full", retry_after_s=4.0, **changes)


def without_tokens(number: int, ending: LoadEnding, **changes: Any) -> LoadRecord:
    empty = dict.fromkeys(("ttft_s", "tpot_s", "e2e_s", "num_prompt", "num_output"))
    return record(number, ending=ending, gaps=b"", **empty, **changes)


def summed(
    records: list[LoadRecord], *, warm_up: float = 0.0, rate: float | None = 1.0, generator: GeneratorFigures = CALM
) -> LoadFigures:
    return figures(records, SLOS, generator, warm_up=warm_up, rate=rate)


def setup(**changes: Any) -> LoadSetup:
    fields: dict[str, Any] = {
        "url": "http://127.0.0.1:8000/v1",
        "api": "chat",
        "model": "a-model",
        "workload": "mix chat",
        "loop": "open",
        "seed": 0,
        "warm_up": 0.1,
        "slos": {slo_class: PromisedTimes(slo.ttft_s, slo.tpot_s) for slo_class, slo in SLOS.items()},
    }
    return LoadSetup(**(fields | changes))


def report(*runs: LoadFigures, **changes: Any) -> LoadReport:
    fields: dict[str, Any] = {"started_at": "2026-01-01T00:00:00+00:00", "setup": setup(), "runs": list(runs)}
    return LoadReport(**(fields | changes))
