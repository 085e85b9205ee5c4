"""Cases of alerts, and series in the notation of promtool. Samples are 15 s apart."""

import msgspec

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


def lost(values: str, **labels: str) -> Series:
    return series("baton_workers_lost_total", values, pool="decode", **labels)


def configured(number: int, pool: str = "decode") -> Series:
    return series("baton_pool_configured", f"{number}x{HOUR}", pool=pool)


def cell(values: str = f"1x{2 * HOUR}", **labels: str) -> Series:
    return series("baton_cell_configured", values, **labels)


def score(values: str) -> Series:
    return series("baton_quality_probe_score", values, worker="d0", path="D")


def differs(values: str) -> Series:
    return series("baton_quality_probes_total", values, path="D", result="differs")


def usable(origin: str, values: str, **labels: str) -> Series:
    return series("baton_quality_reference_usable", values, origin=origin, **labels)


def loop_lag(late: float, for_samples: int = HOUR, replica: str = "i") -> tuple[Series, ...]:
    """An event loop of which so many of 100 moments are half a second late. There are 30 moments in a sample."""
    buckets = {"0.005": 0.3 * (100 - late), "0.25": 0.3 * (100 - late), "0.5": 30.0, "+Inf": 30.0}
    name, labels = "baton_event_loop_lag_seconds_bucket", {"deployment": "ingress", "replica": replica}
    return tuple(series(name, f"0+{number:g}x{for_samples}", le=le, **labels) for le, number in buckets.items())


def gappy(value: float) -> str:
    """A gauge for half an hour of which every seventh sample is missing, before an alert of two minutes has fired."""
    return " ".join([f"{value}x5 stale"] * 17)


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


def a_minute(number: int, minutes: int) -> str:
    """A counter that rises by a number each minute."""
    return " ".join(f"{number * minute}x{MINUTE - 1}" for minute in range(minutes))


NONE = set[str]()
