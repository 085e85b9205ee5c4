from cluster.scaling.correction import BOUNDS, Correction


class Ended:
    """Requests that end, and what a correction of them makes."""

    def __init__(self, target: float = 0.95) -> None:
        self.correction = Correction(target)
        self.num_good = self.num_missed = 0
        self.now = 0.0
        self.correction.begin_anew(0, 0, 0.0)

    def run(self, windows: int, attained: float, ratio: float | None = None, *, is_settled: bool = True) -> float:
        """`ratio`: None for that of the factor."""
        for _ in range(windows):
            self.now += 30.0
            self.num_good += round(1000 * attained)
            self.num_missed += 1000 - round(1000 * attained)
            known = self.correction.factor if ratio is None else ratio
            self.correction.observe(self.num_good, self.num_missed, self.now, ratio=known, is_settled=is_settled)
        return self.correction.factor


def test_misses_raise_the_factor_and_good_times_lower_it_slowly() -> None:
    ended = Ended()
    raised = ended.run(1, 0.85)
    assert raised > 1.1
    assert raised > ended.run(1, 1.0) > 0.93 * raised


def test_attainment_at_the_target_changes_nothing() -> None:
    assert Ended().run(20, 0.955) == 1.0


def test_misses_while_workers_start_say_nothing() -> None:
    assert Ended().run(5, 0.5, is_settled=False) == 1.0


def test_good_times_of_pools_that_are_far_too_large_say_nothing() -> None:
    assert Ended().run(50, 1.0, ratio=3.0) == 1.0


def test_misses_of_pools_that_are_too_large_raise_the_factor_step_by_step() -> None:
    """Workers cannot cure all misses: the factor must not jump to the ratio of an idle pool."""
    assert Ended().run(1, 0.5, ratio=40.0) < 1.6


def test_factor_is_bounded() -> None:
    assert Ended().run(200, 0.0) == BOUNDS[1]
    assert Ended().run(500, 1.0) == BOUNDS[0]


def test_few_requests_change_nothing_until_they_are_enough() -> None:
    correction = Correction(0.95)
    correction.begin_anew(0, 0, 0.0)
    for look in range(1, 20):
        correction.observe(0, look, 30.0 * look, ratio=1.0, is_settled=True)
    assert correction.factor == 1.0
