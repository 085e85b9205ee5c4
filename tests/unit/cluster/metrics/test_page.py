import pickle
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from cluster.messages.ids import CellName, Path, WorkerId
from cluster.messages.placement import Placement, Prediction, Rejection
from cluster.metrics.handoffs import LINKS, set_links
from cluster.metrics.page import Family, Scrape, render, scrape
from cluster.metrics.requests import REQUESTS
from cluster.metrics.scheduler import count_placement
from tests.unit import scrapes
from tests.unit.factories import a_decode_view, a_prefill_view, a_view

D0 = WorkerId("d0")


def a_family(value: float = 1.0, name: str = "baton_links", **labels: str) -> Family:
    return scrapes.a_family(name, (labels, value), documentation="Pairs.")


def a_placement(**fields: Any) -> Placement:
    return Placement(path=Path.DECODE, prefill=None, decode=D0, why="a test wants it", **fields)


def a_rejection(**fields: Any) -> Rejection:
    return Rejection(retry_after_s=1.0, why="a test wants it", **fields)


def num_placements() -> Counter[str]:
    """The placements of this process until now, by their label."""
    placements = scrape("scheduler", "s").values("baton_placements_total")
    return Counter({labels["answer"]: int(value) for labels, value in placements})


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
    assert b'{path="P->D",deployment="prefill",replica="x"} 3.0' in render(
        [Scrape("prefill", "x", [a_family(3.0, path="P->D")])]
    )


def test_label_values_are_escaped() -> None:
    assert b'model="a\\"b\\nc"' in render([Scrape("prefill", "x", [a_family(model='a"b\nc')])])


def test_only_baton_s_series_have_the_label_of_the_model() -> None:
    families = [a_family(decode="d0"), a_family(name="vllm:num_preemptions", model_name="m")]
    page = render([Scrape("decode", "x", families)], {"DecodeWorker": 0}, model='a "model"')
    assert b'baton_links{decode="d0",deployment="decode",model="a \\"model\\"",replica="x"} 1.0\n' in page
    assert b'vllm:num_preemptions{model_name="m",deployment="decode",replica="x"} 1.0\n' in page
    assert b'baton_scrape_missing{deployment="DecodeWorker",model="a \\"model\\""} 0.0\n' in page


@given(st.dictionaries(st.from_regex(r"[a-z]+", fullmatch=True), st.text(), max_size=3), st.floats())
def test_page_says_what_the_process_has_counted_whatever_the_labels_are(labels: dict[str, str], value: float) -> None:
    """As Prometheus' own parser reads it. NUL marks the place of the process's labels, and is left out of values."""
    given = {name: text.replace("\0", "") for name, text in labels.items()}
    one = Scrape("decode", "x", [scrapes.a_family("baton_links", (labels, value), documentation="a \\ b\nc")])
    (family,) = text_string_to_metric_families(render([one], model="m").decode())
    (sample,) = family.samples
    assert sample.labels == given | {"deployment": "decode", "replica": "x", "model": "m"}
    assert sample.value == value or value != value
    ((found, _),) = one.values("baton_links")
    assert found == given


def test_different_families_stay_apart() -> None:
    page = render([Scrape("ingress", "a", [a_family(name="one"), a_family(name="two")])])
    assert page.count(b"# TYPE") == 2


def test_nothing_scraped_is_an_empty_page() -> None:
    assert render([]) == b""


def test_process_offers_its_own_registry() -> None:
    before = render([scrape("ingress", "a")])
    REQUESTS.labels("P->D", "batch", "finished").inc()
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
    assert b'baton_link_latency_seconds{prefill="p0",decode="d0",deployment="scheduler",replica="s"} 0.001\n' in page
    assert b'baton_link_bytes_per_second{prefill="p0",decode="d0",deployment="scheduler",replica="s"} 1e+09\n' in page
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
