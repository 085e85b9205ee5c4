import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.diagnosis.figures import MOST_LINE_CHARS, Figures
from cluster.metrics.page import Scrape, render
from tests.unit.scrapes import a_family

PAGE = """
# HELP baton_requests_total Closed requests.
# TYPE baton_requests_total counter
baton_requests_total{path="D",outcome="finished",replica="a"} 3.0
baton_requests_total{path="D",outcome="finished",replica="b"} 4.0
baton_requests_total{path="P->D",outcome="failed",replica="b"} 1e1
baton_queue_requests 2 1700000000
weird{label="a\\"b,c="} 1.0
cut_off{label="x
infinite 1e999
nothing NaN
"""


def test_sums_are_of_all_samples_with_the_labels() -> None:
    figures = Figures.of(PAGE)
    assert figures.total("baton_requests_total") == 17
    assert figures.total("baton_requests_total", path="D", replica="b") == 4
    assert figures.total("baton_queue_requests") == 2
    assert figures.total("unknown", path="D") == 0
    assert figures.by("baton_requests_total", "path") == {"P->D": 10, "D": 7}
    assert [*figures.by("baton_requests_total", "outcome")] == ["failed", "finished"]
    assert figures.by("weird", "label") == {'a\\"b,c=': 1}


@pytest.mark.parametrize("name", ["cut_off", "infinite", "nothing"])
def test_lines_without_a_finite_number_are_left_out(name: str) -> None:
    assert not Figures.of(PAGE).has(name)


def test_counters_are_counted_from_the_earlier_page_and_gauges_are_not() -> None:
    earlier = Figures.of('a_total{r="1"} 5\na_total{r="2"} 5\ngauge 7')
    later = Figures.of('a_total{r="1"} 8\na_total{r="2"} 1\na_total{r="3"} 2\ngauge 6').since(earlier)
    assert later.by("a_total", "r") == {"1": 3, "3": 2, "2": 1}  # the second process began anew
    assert later.total("gauge") == 6


LABELS = st.dictionaries(st.sampled_from(["path", "class"]), st.text(st.characters(categories=["L", "P"]), max_size=4))


@given(st.lists(st.tuples(LABELS, st.integers(0, 1000)), max_size=6))
def test_what_baton_renders_is_read(samples: list[tuple[dict[str, str], int]]) -> None:
    unique = {frozenset(labels.items()): value for labels, value in samples}
    family = a_family("a_total", *((dict(labels), value) for labels, value in unique.items()), kind="counter")
    page = render([Scrape("ingress", "0", [family])]).decode()
    assert Figures.of(page).total("a_total") == sum(unique.values())


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    Figures.of(text).by(text[:5], text[5:9])


@pytest.mark.parametrize("inside", ["w", 'w="', 'w="\\\\', 'w="x",', "} 1 ", '"', "\\\\", "w "])
def test_long_line_takes_no_longer_than_it_is_long(inside: str) -> None:
    """A page of a megabyte, of lines that are as long as any that is read, or longer."""
    line = "a{" + inside * (MOST_LINE_CHARS // len(inside) - 8) + "} 1\n"
    began = time.process_time()
    Figures.of(line * (1_000_000 // len(line)) + "a{" + inside * 100_000 + "} 1\nb 2\n")
    assert time.process_time() - began < 5.0


def test_line_whose_labels_cannot_be_read_is_left_out() -> None:
    figures = Figures.of('a{x="1",} 1\na{x="1"y="2"} 2\na{x=1} 4\na{ x="2" , y="}" } 8\na{} 16\n')
    assert figures.total("a") == 25
