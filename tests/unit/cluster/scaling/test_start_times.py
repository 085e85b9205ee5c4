from cluster.scaling.start_times import StartTimes


def test_a_start_is_measured_from_its_order() -> None:
    starts = StartTimes(60.0)
    for ordered, live, now in ((1, 1, 0.0), (2, 1, 10.0), (2, 1, 50.0), (2, 2, 100.0)):
        starts.observe(ordered, live, now)
    assert starts.horizon_s == 90.0


def test_workers_that_come_back_are_no_starts() -> None:
    """They were lost for a moment, or the Scheduler is new and has not heard them."""
    starts = StartTimes(300.0)
    for live, now in ((4, 0.0), (3, 10.0), (4, 11.0), (0, 20.0), (4, 21.0)):
        starts.observe(4, live, now)
    assert starts.horizon_s == 300.0


def test_order_that_is_taken_back_is_no_start() -> None:
    starts = StartTimes(60.0)
    for ordered, live, now in ((1, 1, 0.0), (2, 1, 1.0), (1, 1, 2.0), (1, 1, 3.0)):
        starts.observe(ordered, live, now)
    assert starts.horizon_s == 60.0


def test_no_start_counts_much_less_than_expected() -> None:
    starts = StartTimes(60.0)
    for ordered, live, now in ((1, 1, 0.0), (2, 1, 1.0), (2, 2, 2.0)):
        starts.observe(ordered, live, now)
    assert starts.horizon_s == 15.0
