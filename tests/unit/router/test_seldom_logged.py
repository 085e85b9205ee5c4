"""A worker in trouble does not fill the log."""

from cluster.messages.ids import WorkerId
from router.seldom_logged import LOG_INTERVAL_S, MAX_WORKERS, SeldomLogged

A, B = WorkerId("a"), WorkerId("b")


def test_line_about_a_worker_is_due_once_in_an_interval_and_tells_of_all_since() -> None:
    seldom = SeldomLogged()
    assert seldom.count(A, 0.0) == 1
    assert [seldom.count(A, now) for now in (1.0, 2.0, LOG_INTERVAL_S - 1.0)] == [0, 0, 0]
    assert seldom.count(B, 3.0) == 1, "another worker has its own"
    assert seldom.count(A, LOG_INTERVAL_S) == 4
    assert seldom.count(A, LOG_INTERVAL_S + 1.0) == 0


def test_only_the_workers_of_the_last_lines_are_remembered() -> None:
    seldom = SeldomLogged()
    for number in range(MAX_WORKERS + 1):
        assert seldom.count(WorkerId(f"w{number}"), 0.0) == 1
    assert seldom.count(WorkerId(f"w{MAX_WORKERS}"), 0.0) == 0
    assert seldom.count(WorkerId("w0"), 0.0) == 1
