"""The table of timeouts in ARCHITECTURE.md has every time that is a constant, with the value that the constant has, and
the defaults of the config.

A constant of a module is a time if it is a timedelta, or if its name ends with `_S`, `_MS` or `_US` and is no rate
(`_PER_S`). NO_TIMEOUTS lists those that bound no waiting.
"""

import ast
import math
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from cluster.config.application import AppConfig
from tests.architecture.sources import ROOT, SOURCES, tree

NAME = re.compile(r"`([\w.*]+)`")
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
KEY = re.compile(r"(?:[a-z_]+|\*)(?:\.(?:[a-z_]+|\*))+")
"""A key of the Serve config, such as `ingress.idle_timeout_s` or `*.grammars.step_ms`."""
VALUE = re.compile(r"\s*(none\b|\d[\d.]*(?: / \d[\d.]*)*)(?: (ms|s|min|h|d|us)\b)?")
"""`5 s`, a count, `none`, or `10 / 60 / 600 s`, one for each section that `*` stands for."""
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
TIME = re.compile(r"(?<!_PER)_(S|MS|US)$")

ON_VIRTUAL_CLOCK = ("cluster/planning/", "cluster/simulation/")
"""Times of the simulator, and of plans that it checks, are not in the table."""
OF_LIBRARIES = frozenset({"TCP_USER_TIMEOUT", "UCX_KEEPALIVE_INTERVAL"})
"""Options of libraries, which the table names beside Baton's constants."""

NO_TIMEOUTS = {
    ("api/wire/slo.py", "LEAST_MS"): "the smallest objective that a client may ask for",
    ("api/metering/waiting_age.py", "LEAST_GAP_S"): "between two arrivals whose times are kept",
    ("cluster/metrics/buckets.py", "ANSWER_BUCKETS_S"): "bounds of the buckets of histograms",
    ("cluster/metrics/buckets.py", "GAP_BUCKETS_S"): "bounds of the buckets of histograms",
    ("router/retention/return_times.py", "EDGES_S"): "bounds of intervals in which returns are counted",
    ("cluster/load/record.py", "LATE_S"): "a lateness that a report warns of",
    ("api/web/recent_requests.py", "WINDOW_S"): "the age of requests that figures are made of",
    ("cluster/diagnosis/links.py", "STARTING_S"): "the age of a Scheduler up to which unproved links are normal",
    ("cluster/doctor/judgement/machine.py", "LARGEST_SKEW_S"): "a bound of differences of clocks",
    ("cluster/metrics/buckets.py", "LATENCY_BUCKETS_S"): "bounds of the buckets of histograms",
    ("cluster/metrics/buckets.py", "STEP_BUCKETS_S"): "bounds of the buckets of histograms",
    ("cluster/observability/alerts/requests.py", "MAX_TTFT_P95_S"): "limits of an alert",
    ("cluster/observability/alerts/service.py", "MAX_LAG_S"): "the limit of an alert",
    ("cluster/observability/alerts/service.py", "MAX_LOOP_LAG_P99_S"): "the limit of an alert",
    ("cluster/observability/alerts/workers.py", "SILENT_S"): "the limit of an alert",
    ("router/admission/fairness.py", "_WINDOW_S"): "computed from HALF_LIFE_S",
    ("router/admission/fairness.py", "_AGEING_S"): "computed from HALF_LIFE_S",
    ("router/session/timeline.py", "ROUNDING_S"): "a gap between two stages that is none",
    ("router/load/prefill_share.py", "WINDOWS_S"): "SHORT_S, MIDDLE_S and LONG_S together",
    ("router/load/prefill_share.py", "_NO_STALL_S"): "a sum of stalls that counts as none",
    ("router/load/prompt_demand.py", "LEAST_TTFT_S"): "the objective at which a group of prompts begins",
    ("router/load/running_requests.py", "MIN_STEP_S"): "a divisor that must not be zero",
    ("router/prediction/learned_latency.py", "STEP_S"): "bounds of samples that are learned from",
    ("router/prediction/learned_latency.py", "_RELATIVE_ABOVE_S"): "a unit of errors",
    ("router/prediction/path_bias.py", "_TTFT_OVERHEAD_S"): "a unit of overheads",
    ("router/prediction/path_bias.py", "_TPOT_OVERHEAD_S"): "a unit of overheads",
    ("router/prediction/path_bias.py", "_LONGEST_S"): "a bound of samples that are learned from",
    ("router/replay/explainer.py", "GONE_S"): "how long ago workers left that a story names",
    ("router/replay/what_if.py", "GRACE_S"): "a time within a log",
    ("router/prediction/transfer.py", "_LONGEST_S"): "a bound of samples that are learned from",
    ("router/prediction/transfer.py", "_RELATIVE_ABOVE_S"): "a unit of errors",
    ("router/prediction/transfer.py", "_LEAST_LATENCY_S"): "a unit of latencies",
}
"""Constants that are named like times, with what they are."""


def table() -> list[tuple[str, str]]:
    """The first two cells of each row: names and values, and files."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    lines = text[text.index("\n## Timeouts") :].splitlines()
    cells = [line.split("|") for line in lines if line.startswith("| ") and "set in |" not in line]
    return [(row[1].strip(), row[2]) for row in cells]


ROWS = table()


def files_of(cell: str) -> list[str]:
    return [path for path in re.findall(r"[\w/]+\.py", cell) if (ROOT / path).is_file()]


def assigned(file: str) -> Iterator[tuple[str, ast.expr]]:
    """The names that a module assigns at its top, and their values."""
    for node in tree(file).body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                yield from ((ast.unparse(name), value) for name, value in zip(names, values, strict=True))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value


def constants(file: str) -> dict[str, Any]:
    """What the module's constants are that can be computed from numbers. The value of the others is None."""
    found: dict[str, Any] = {}
    for name, expression in assigned(file):
        if CONSTANT.fullmatch(name):
            try:
                scope = {"timedelta": timedelta, "log": math.log, "__builtins__": {}} | found
                found[name] = eval(ast.unparse(expression), scope)
            except (AttributeError, NameError, TypeError, SyntaxError):
                found[name] = None
    return found


def times() -> list[tuple[str, str]]:
    """Every constant that the table must have: its file and its name."""
    return [
        (file, name)
        for file in SOURCES
        if not file.startswith(ON_VIRTUAL_CLOCK)
        for name, value in constants(file).items()
        if TIME.search(name) or isinstance(value, timedelta)
    ]


def stated(cell: str) -> Iterator[tuple[str, list[float]]]:
    """Names in a cell, and the values after each, in seconds. Names that only a comma parts have the same values."""
    names: list[str] = []
    for match in NAME.finditer(cell):
        names.append(match[1])
        between = cell[match.end() :].partition("`")[0]
        if between == ", ":
            continue
        values = numbers(between)
        yield from ((name, values) for name in names)
        names = []


def numbers(text: str) -> list[float]:
    """The values at the begin of a text, with their unit. None counts as nan."""
    if (value := VALUE.match(text)) is None:
        return []
    unit = UNITS.get(value[2] or "s", 1.0)
    return [math.nan if number == "none" else float(number) * unit for number in value[1].split(" / ")]


def in_seconds(name: str, value: Any) -> float:
    """A value by the unit in its name, as `numbers` reads it. A count has none."""
    if value is None:
        return math.nan
    if isinstance(value, timedelta):
        return value.total_seconds()
    unit = UNITS["d"] if name.endswith("_days") else UNITS.get(name.lower().rpartition("_")[2], 1.0)
    return float(value) * unit


def same(one: float, other: float) -> bool:
    return math.isclose(one, other) or (math.isnan(one) and math.isnan(other))


def defaults(key: str, config: Any) -> list[Any]:
    """The defaults at a key. `*` stands for each section that has the rest of the key. Tenants have no sections."""
    first, _, rest = key.partition(".")
    if isinstance(config, dict):
        return []
    assert isinstance(config, msgspec.Struct), key
    if first == "*":
        found = [defaults(rest, section) for section in msgspec.structs.asdict(config).values() if has(rest, section)]
        assert found, key
        return [value for values in found for value in values]
    assert first in config.__struct_fields__, key
    value = getattr(config, first)
    return defaults(rest, value) if rest else [value]


def has(key: str, section: Any) -> bool:
    return isinstance(section, msgspec.Struct) and key.partition(".")[0] in section.__struct_fields__


def keys(cell: str) -> Iterator[tuple[str, list[float]]]:
    """The keys of the config in a cell, and their values. A name without a section has that of the key before."""
    section = ""
    for name, values in stated(cell):
        if KEY.fullmatch(name):
            section = name.rpartition(".")[0]
            yield name, values
        elif section and name.islower():
            yield f"{section}.{name}", values


def test_table_has_rows() -> None:
    assert len(ROWS) > 100


@pytest.mark.parametrize(("cell", "files"), ROWS)
def test_constant_is_set_where_the_table_says(cell: str, files: str) -> None:
    known = [constants(file) for file in files_of(files)]
    for name, values in stated(cell):
        if CONSTANT.fullmatch(name) and name not in OF_LIBRARIES:
            actual = [in_seconds(name, found[name]) for found in known if name in found]
            assert actual, f"{name} is not in {files}, where the table of ARCHITECTURE.md (timeouts) has it"
            others = [value for value in actual if values and not same(value, values[0])]
            assert not others, f"{name} is {others} in {files}, and {values[0]} in the table of ARCHITECTURE.md"


@pytest.mark.parametrize(("cell", "files"), [row for row in ROWS if list(keys(row[0]))])
def test_key_of_the_config_has_the_default_that_the_table_says(cell: str, files: str) -> None:
    for key, values in keys(cell):
        actual = [in_seconds(key, value) for value in defaults(key, AppConfig(model="m")) if values]
        told = values if len(values) > 1 else values * len(actual)
        is_told = len(told) == len(actual) and all(map(same, told, actual))
        assert is_told, f"{key} is {actual} in the config and {told} in the table of ARCHITECTURE.md (timeouts)"


@pytest.mark.parametrize(("file", "name"), [time for time in times() if time not in NO_TIMEOUTS])
def test_time_is_in_the_table_with_its_value(file: str, name: str) -> None:
    cells = [cell for cell, files in ROWS if file in files_of(files)]
    assert [values for cell in cells for told, values in stated(cell) if told == name and values], (
        f"{name} of {file} needs a row with its value in the table of ARCHITECTURE.md (timeouts), "
        "or a line in NO_TIMEOUTS of this file if it bounds no waiting"
    )


def test_each_exception_is_named_like_a_time() -> None:
    assert set(NO_TIMEOUTS) <= set(times()), f"remove from NO_TIMEOUTS: {set(NO_TIMEOUTS) - set(times())}"
