"""Series as Prometheus's HTTP API answers them. Pure."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from cluster.observability.render.window import Window
from cluster.unreadable import UNREADABLE

LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")

LARGEST = 1e100
"""Size of a value above which it is left out, as infinity is. Larger makes an axis without numbers; smaller leaves out
figures.
"""


MOST_POINTS = 1_000_000
"""Points of all series of an answer. A point takes about 100 bytes, and a page of two days has some 500 for each
series. More lets whatever answers fill the memory; fewer fails in large clusters.
"""
_POINT_BYTES = 100
"""Bytes that a point takes in an answer at most: two numbers."""


class Series(msgspec.Struct, frozen=True):
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    """Times and values. Values that are no numbers are left out, as that of a quantile of nothing."""

    def named(self, legend: str) -> str:
        """The name of its line, by Grafana's template. A label that it does not have is left out."""
        return " ".join(LABEL.sub(lambda found: self.labels.get(found[1], ""), legend).split())


class NotPrometheus(ValueError):
    """A text is no answer of Prometheus. The message says why."""


class QueryRefused(ValueError):
    """Prometheus answers that it cannot answer. The message is Prometheus's."""


class _Row(msgspec.Struct):
    metric: dict[str, str]
    values: msgspec.Raw
    """Points: decoded row by row, so that a row which has too many of them is never held as a whole."""


class _Matrix(msgspec.Struct, tag_field="resultType", tag="matrix"):
    result: list[_Row]


class _Answer(msgspec.Struct):
    status: str
    data: _Matrix | None = None
    error: str = ""


def series_of(text: bytes, window: Window) -> list[Series]:
    """The series of an answer to a query over a window.

    Raises:
        QueryRefused: Prometheus refuses the query.
        NotPrometheus: it is no such answer.
    """
    try:
        answer = msgspec.json.decode(text, type=_Answer)
        if answer.status == "error":
            raise QueryRefused(answer.error)
        if answer.status != "success" or answer.data is None:
            raise NotPrometheus("no result")
        found: list[Series] = []
        room = MOST_POINTS
        for row in answer.data.result:
            points = _points(row.values, window)
            room -= len(points)
            if room < 0:
                raise NotPrometheus(f"more than {MOST_POINTS} values")
            found.append(Series(row.metric, points))
        return found
    except (NotPrometheus, QueryRefused):
        raise
    except (ValueError, *UNREADABLE) as error:
        raise NotPrometheus(str(error)) from error


def _points(encoded: msgspec.Raw, window: Window) -> list[tuple[float, float]]:
    """Raises ValueError if these are no values of the window."""
    most = (window.end - window.start) // window.step + 1
    if len(memoryview(encoded)) > most * _POINT_BYTES:
        raise NotPrometheus("more values than were asked for")
    values = _decode_values(encoded)
    times = [time for time, _ in values]
    is_ordered = all(before < after for before, after in pairwise(times))
    if len(values) > most or not is_ordered or not all(window.start <= time <= window.end for time in times):
        raise NotPrometheus("values of other times than were asked for")
    return [(time, value) for time, text in values if abs(value := float(text)) <= LARGEST]


_decode_values = msgspec.json.Decoder(list[tuple[float, str]]).decode
