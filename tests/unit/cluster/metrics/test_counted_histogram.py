from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from cluster.metrics.counted_histogram import CountedHistogram

BOUNDS = (0.01, 0.1, 1.0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2000)), max_size=30))
def test_page_is_that_of_prometheus_own_histogram(observed: list[tuple[str, int]]) -> None:
    counted, own = CollectorRegistry(), CollectorRegistry()
    ours = CountedHistogram("h", "What it is.", ["path"], BOUNDS, counted)
    theirs = Histogram("h", "What it is.", ["path"], buckets=BOUNDS, registry=own)
    for path, milliseconds in observed:
        value = milliseconds / 1000
        counts = [0] * (len(BOUNDS) + 1)
        counts[bisect_left(BOUNDS, value)] += 1
        ours.add((path,), counts, value)
        theirs.labels(path).observe(value)
    assert generate_latest(counted) == generate_latest(own)
