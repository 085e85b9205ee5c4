import pickle
from collections import Counter
from typing import Any

import pytest

from cluster.messages.ids import CellName, Path, WorkerId
from cluster.messages.placement import Placement, Prediction, Rejection
from cluster.metrics.handoffs import LINKS, set_links
from cluster.metrics.page import Family, MetricSample, Scrape, render, scrape
from cluster.metrics.requests import REQUESTS
from cluster.metrics.scheduler import count_placement
from tests.unit.factories import a_decode_view, a_prefill_view, a_view

D0 = WorkerId("d0")


def a_family(value: float = 1.0, name: str = "baton_links", **labels: str) -> Family:
    return Family(name, "Pairs.", "gauge", [MetricSample(name, labels, value)])


def a_placement(**fields: Any) -> Placement:
    return Placement(path=Path.DECODE, prefill=None, decode=D0, why="a test wants it", **fields)


def a_rejection(**fields: Any) -> Rejection:
    return Rejection(retry_after_s=1.0, why="a test wants it", **fields)


def num_placements() -> Counter[str]:
    """The placements of this process until now, by their label."""
    (family,) = (family for family in scrape("scheduler", "s").families if family.name == "baton_placements")
    return Counter({sample.labels["answer"]: int(sample.value) for sample in family.samples})


def test_families_of_one_name_become_one_told_apart_by_their_process() -> None:
    scrapes = [Scrape("ingress", "a", [a_family(1)]), Scrape("scheduler", "b", [a_family(2)])]
    assert render(scrapes) == (
        b"# HELP baton_links Pairs.\n"
        b"# TYPE baton_links gauge\n"
        b'baton_links{deployment="ingress",replica="a"} 1.0\n'
        b'baton_links{deployment="scheduler",replica="b"} 2.0\n'
    )


def test_samples_of_a_cell_have_its_name() -> None:
    page = render([Scrape("scheduler", "b", [a_family(2)], CellName("x"))])
    assert b'baton_links{cell="x",deployment="scheduler",replica="b"} 2.0' in page


def test_sample_keeps_its_own_labels() -> None:
    assert b'{deployment="prefill",path="P->D",replica="x"} 3.0' in render(
        [Scrape("prefill", "x", [a_family(3.0, path="P->D")])]
    )


def test_label_values_are_escaped() -> None:
    assert b'model="a\\"b\\nc"' in render([Scrape("prefill", "x", [a_family(model='a"b\nc')])])


def test_different_families_stay_apart() -> None:
    page = render([Scrape("ingress", "a", [a_family(name="one"), a_family(name="two")])])
    assert page.count(b"# TYPE") == 2


def test_nothing_scraped_is_an_empty_page() -> None:
    assert render([]) == b""


def test_process_offers_its_own_registry() -> None:
    before = render([scrape("ingress", "a")])
    REQUESTS.labels("P->D", "finished").inc()
    LINKS.labels("d0").set(4)
    page = render([scrape("ingress", "a")])
    assert page != before
    assert b"# TYPE baton_requests_total counter\n" in page
    assert b'baton_links{decode="d0",deployment="ingress",replica="a"} 4.0\n' in page
    assert b"_created" not in page


def test_scrape_survives_the_way_between_processes() -> None:
    own = scrape("ingress", "a")
    assert pickle.loads(pickle.dumps(own)) == own


def test_speed_of_a_link_is_shown_as_long_as_there_is_the_link() -> None:
    set_links(a_view(a_prefill_view("p0"), a_decode_view("d0", connected="p0")))
    page = render([scrape("scheduler", "s")])
    assert b'baton_link_latency_seconds{decode="d0",deployment="scheduler",prefill="p0",replica="s"} 0.001\n' in page
    assert b'baton_link_bytes_per_second{decode="d0",deployment="scheduler",prefill="p0",replica="s"} 1e+09\n' in page
    assert b'baton_links{decode="d0",deployment="scheduler",replica="s"} 1.0\n' in page
    set_links(a_view(a_prefill_view("p0"), a_decode_view("d0", connected="")))
    page = render([scrape("scheduler", "s")])
    assert b'prefill="p0"' not in page
    assert b'baton_links{decode="d0",deployment="scheduler",replica="s"} 0.0\n' in page
    assert page.count(b"baton_links{") == 1  # none of the prefill worker


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        ("predicted", a_placement(predicted=Prediction(Path.DECODE, None, D0, 0.1, 0.01, 0.0, 0.0, 0.1, 0.0))),
        ("fallback", a_placement()),
        ("overload", a_rejection(is_overload=True)),
        ("quarantined", a_rejection(is_quarantined=True)),
        ("no_worker", a_rejection()),
    ],
)
def test_placements_are_counted_by_how_they_were_answered(label: str, answer: Placement | Rejection) -> None:
    before = num_placements()
    count_placement(answer)
    assert num_placements() - before == Counter({label: 1})
