import pickle

from cluster.messages.ids import Path, WorkerId
from cluster.messages.placement import Placement, Rejection
from cluster.metrics import (
    LINKS,
    REQUESTS,
    Family,
    MetricSample,
    Scrape,
    count_placement,
    render,
    scrape,
    set_link_speeds,
)
from tests.unit.factories import a_decode_view, a_prefill_view, a_view


def a_family(value: float = 1.0, name: str = "baton_links", **labels: str) -> Family:
    return Family(name, "Pairs.", "gauge", [MetricSample(name, labels, value)])


def test_families_of_one_name_become_one_told_apart_by_their_process() -> None:
    scrapes = [Scrape("ingress", "a", [a_family(1)]), Scrape("scheduler", "b", [a_family(2)])]
    assert render(scrapes) == (
        b"# HELP baton_links Pairs.\n"
        b"# TYPE baton_links gauge\n"
        b'baton_links{deployment="ingress",replica="a"} 1.0\n'
        b'baton_links{deployment="scheduler",replica="b"} 2.0\n'
    )


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
    LINKS.set(4)
    page = render([scrape("ingress", "a")])
    assert page != before
    assert b"# TYPE baton_requests_total counter\n" in page
    assert b'baton_links{deployment="ingress",replica="a"} 4.0\n' in page
    assert b"_created" not in page


def test_scrape_survives_the_way_between_processes() -> None:
    own = scrape("ingress", "a")
    assert pickle.loads(pickle.dumps(own)) == own


def test_speed_of_a_link_is_shown_as_long_as_there_is_the_link() -> None:
    set_link_speeds(a_view(a_prefill_view("p0"), a_decode_view("d0", connected="p0")))
    page = render([scrape("scheduler", "s")])
    assert b'baton_link_latency_seconds{decode="d0",deployment="scheduler",prefill="p0",replica="s"} 0.001\n' in page
    assert b'baton_link_bytes_per_second{decode="d0",deployment="scheduler",prefill="p0",replica="s"} 1e+09\n' in page
    set_link_speeds(a_view(a_prefill_view("p0"), a_decode_view("d0", connected="")))
    assert b'prefill="p0"' not in render([scrape("scheduler", "s")])


def test_placements_are_counted_by_how_they_were_answered() -> None:
    count_placement(Placement(path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="a test wants it"))
    count_placement(Rejection(retry_after_s=1.0, why="a test wants it", is_overload=True))
    page = render([scrape("scheduler", "s")])
    for answer in (b"fallback", b"overload"):
        assert b'baton_placements_total{answer="' + answer + b'",deployment="scheduler",replica="s"} 1.0\n' in page
