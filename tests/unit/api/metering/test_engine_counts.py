from api.metering.differences import EngineCount
from api.metering.engine_counts import GENERATED, PROBED, STARTED, UNCLAIMED, UNREAD, engine_counts
from cluster.metrics.page import Scrape
from tests.unit.scrapes import a_family


def scrape(deployment: str, replica: str, *samples: tuple[str, dict[str, str], float]) -> Scrape:
    families = [
        a_family(name, (labels, value), kind="counter" if name.endswith("_total") else "gauge")
        for name, labels, value in samples
    ]
    return Scrape(deployment, replica, families)


def test_tokens_that_no_session_has_are_summed_over_all_processes() -> None:
    scrapes = [
        scrape("ingress", "i0", (UNREAD, {"worker": "d0"}, 2.0), (UNREAD, {"worker": "gone"}, 9.0)),
        scrape("ingress", "i1", (UNREAD, {"worker": "d0"}, 3.0), (STARTED, {}, 40.0)),
        scrape(
            "decode",
            "d0",
            (GENERATED, {"engine": "0"}, 100.0),
            (STARTED, {}, 60.0),
            (UNCLAIMED, {"why": "probe"}, 10.0),
            (UNCLAIMED, {"why": "warm-up"}, 1.0),
        ),
        scrape("prefill", "p0", (GENERATED, {"engine": "0"}, 7.0), (STARTED, {}, 50.0)),
    ]
    assert engine_counts(scrapes) == [EngineCount("d0", 100, 60.0, unread=16), EngineCount("p0", 7, 50.0)]


def test_engines_of_one_worker_are_one() -> None:
    two = scrape("decode", "d0", (GENERATED, {"engine": "0"}, 1.0), (GENERATED, {"engine": "1"}, 2.0))
    assert engine_counts([two]) == [EngineCount("d0", 3, 0.0)]


def test_answers_to_probes_are_no_usage_and_their_prompts_are_not_generated() -> None:
    scrapes = [
        scrape("decode", "d0", (GENERATED, {"engine": "0"}, 40.0)),
        scrape(
            "ingress",
            "i0",
            (PROBED, {"worker": "d0", "part": "answer"}, 32.0),
            (PROBED, {"worker": "d0", "part": "prompt"}, 80.0),
        ),
    ]
    assert engine_counts(scrapes) == [EngineCount("d0", 40, 0.0, unread=32)]
