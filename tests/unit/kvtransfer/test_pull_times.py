from types import SimpleNamespace

import pytest

from kvtransfer.pull_times import PullTimes


def test_pull_is_timed_part_by_part() -> None:
    times, handles = PullTimes(), {"r": [object(), object()], "other": [object()]}
    times.connects("r", 1.0)
    times.connects("r", 1.5)
    times.began("r", 3.0, 3.25)
    assert times.seconds("r", 4.0) == 1.0
    for handle, duration in zip(handles["r"], (1e5, 4e5), strict=True):
        times.moved(handles, [(handle, SimpleNamespace(xferDuration=duration, totalBytes=100))])
    pull = times.over("r", 5.0)
    assert pull is not None
    assert (pull.seconds, pull.ended_at, pull.connect_s, pull.post_s) == (2.0, 5.0, 2.0, 0.25)
    assert pull.transfer_s == pytest.approx(0.4)
    assert pull.num_bytes == 200
    assert times.over("r", 6.0) is None


def test_pull_whose_begin_was_missed_counts_from_when_it_was_seen() -> None:
    times = PullTimes()
    times.reads(["r"], 2.0)
    times.reads(["r"], 3.0)
    times.moved({"r": [1]}, [(1, None), ("unknown", None)])
    pull = times.over("r", 4.0)
    assert pull is not None and (pull.seconds, pull.num_bytes) == (2.0, 0)


def test_pull_that_never_began_is_forgotten_with_its_request() -> None:
    times = PullTimes()
    times.connects("aborted", 1.0)
    times.forget({})
    times.began("aborted", 5.0, 5.0)
    pull = times.over("aborted", 6.0)
    assert pull is not None and pull.connect_s == 0.0
