"""Series as Prometheus's HTTP API answers them. Pure."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from cluster.observability.render.window import Window

LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")

LARGEST = 1e100
"""Size of a value above which it is left out, as infinity is. Larger makes an axis without numbers; smaller leaves out
figures.
"""


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
    values: list[tuple[float, str]]


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
        if not all(window.start <= time <= window.end for row in answer.data.result for time, _ in row.values):
            raise NotPrometheus("values of other times than were asked for")
        return [
            Series(row.metric, [(time, value) for time, text in row.values if abs(value := float(text)) <= LARGEST])
            for row in answer.data.result
        ]
    except (NotPrometheus, QueryRefused):
        raise
    except (ValueError, RecursionError) as error:
        raise NotPrometheus(str(error)) from error
