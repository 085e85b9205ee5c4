import pickle

from cluster.metrics import LINKS, REQUESTS, Family, Sample, Scrape, render, scrape


def a_family(value: float = 1.0, name: str = "baton_links", **labels: str) -> Family:
    return Family(name, "Pairs.", "gauge", [Sample(name, labels, value)])


def test_families_of_one_name_become_one_told_apart_by_their_process():
    scrapes = [Scrape("ingress", "a", [a_family(1)]), Scrape("scheduler", "b", [a_family(2)])]
    assert render(scrapes) == (
        b"# HELP baton_links Pairs.\n"
        b"# TYPE baton_links gauge\n"
        b'baton_links{deployment="ingress",replica="a"} 1.0\n'
        b'baton_links{deployment="scheduler",replica="b"} 2.0\n'
    )


def test_sample_keeps_its_own_labels():
    assert b'{deployment="prefill",path="P->D",replica="x"} 3.0' in render(
        [Scrape("prefill", "x", [a_family(3.0, path="P->D")])]
    )


def test_label_values_are_escaped():
    assert b'model="a\\"b\\nc"' in render([Scrape("prefill", "x", [a_family(model='a"b\nc')])])


def test_different_families_stay_apart():
    page = render([Scrape("ingress", "a", [a_family(name="one"), a_family(name="two")])])
    assert page.count(b"# TYPE") == 2


def test_nothing_scraped_is_an_empty_page():
    assert render([]) == b""


def test_process_offers_its_own_registry():
    before = render([scrape("ingress", "a")])
    REQUESTS.labels("P->D", "finished").inc()
    LINKS.set(4)
    page = render([scrape("ingress", "a")])
    assert page != before
    assert b"# TYPE baton_requests_total counter\n" in page
    assert b'baton_links{deployment="ingress",replica="a"} 4.0\n' in page
    assert b"_created" not in page


def test_scrape_survives_the_way_between_processes():
    own = scrape("ingress", "a")
    assert pickle.loads(pickle.dumps(own)) == own
