import json
from typing import Any

import pytest

from cluster.observability.render import series
from cluster.observability.render.series import NotPrometheus, QueryRefused, Series, series_of
from cluster.observability.render.window import Window

WINDOW = Window(100, 200, 50, 15)


def an_answer(*rows: tuple[dict[str, str], list[tuple[float, str]]], **fields: Any) -> bytes:
    result = [{"metric": labels, "values": values} for labels, values in rows]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}, **fields}).encode()


def test_values_that_are_no_numbers_are_left_out() -> None:
    text = an_answer(({"pool": "decode"}, [(100, "1.5"), (150, "NaN"), (200, "+Inf")]), ({}, []))
    assert series_of(text, WINDOW) == [Series({"pool": "decode"}, [(100.0, 1.5)]), Series({}, [])]


def test_line_is_named_by_its_labels() -> None:
    line = Series({"pool": "decode", "worker": "d0"}, [])
    assert line.named("{{pool}} {{ worker }} live") == "decode d0 live"
    assert line.named("{{cell}} {{pool}}") == "decode"


def test_refusal_is_told_in_the_words_of_prometheus() -> None:
    text = json.dumps({"status": "error", "errorType": "bad_data", "error": "no such function"}).encode()
    with pytest.raises(QueryRefused, match="no such function"):
        series_of(text, WINDOW)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>hello</html>",
        b"\xff",
        b"[" * 100_000,
        b"{}",
        b'{"status":"success"}',
        b'{"status":"fine","data":{"resultType":"matrix","result":[]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[]}}',
        an_answer(({}, [(150, "much")])),
        an_answer(({}, [(99, "1")])),
        an_answer(({}, [(1e300, "1")])),
        an_answer(({}, [(100, "1"), (100, "1")])),
        an_answer(({}, [(150, "1"), (100, "1")])),
        an_answer(({}, [(100, "1"), (120, "1"), (150, "1"), (200, "1")])),
        an_answer(({}, [(100, "1")] * 100_000)),
        an_answer(({}, [(100, "1" * 1000)])),
    ],
)
def test_what_is_no_answer_is_told_from_an_empty_one(text: bytes) -> None:
    with pytest.raises(NotPrometheus):
        series_of(text, WINDOW)
    assert series_of(an_answer(), WINDOW) == []


def test_values_of_all_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_POINTS", 4)
    row: tuple[dict[str, str], list[tuple[float, str]]] = ({}, [(100, "1"), (150, "1")])
    assert len(series_of(an_answer(row, row), WINDOW)) == 2
    with pytest.raises(NotPrometheus, match="more than 4"):
        series_of(an_answer(row, row, row), WINDOW)
