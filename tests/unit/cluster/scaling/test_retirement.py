from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import Pool, WorkerId
from cluster.scaling.pool_sizes import PoolSizes
from cluster.scaling.retirement import Retirement

D = [WorkerId(f"d{index}") for index in range(6)]


def targets(
    retirement: Retirement, wanted: int, present: int, busy: set[str], now: float = 0.0, known: int | None = None
) -> int:
    """Of a decode pool whose workers would be stopped in the order d0, d1, ..."""
    victims = {Pool.DECODE: D[: present if known is None else known]}
    num_open = {worker: 3 if worker in busy else 0 for worker in D}
    return retirement.targets(PoolSizes(1, wanted), PoolSizes(1, present), victims, num_open, now).decode


def test_worker_is_emptied_before_it_is_stopped() -> None:
    retirement = Retirement(empty_s=100.0)
    assert targets(retirement, 2, 3, {"d0", "d1"}) == 3
    assert retirement.retiring == ["d0"]
    assert targets(retirement, 2, 3, {"d1"}, now=5.0) == 2


def test_worker_that_does_not_get_empty_is_stopped_after_a_while() -> None:
    retirement = Retirement(empty_s=100.0)
    assert targets(retirement, 2, 3, {"d0"}) == 3
    assert targets(retirement, 2, 3, {"d0"}, now=99.0) == 3
    assert targets(retirement, 2, 3, {"d0"}, now=100.0) == 2


def test_only_workers_that_are_stopped_first_make_the_target_fall() -> None:
    """Serve would stop d0, which is busy, if the target fell because d1 is empty."""
    retirement = Retirement(empty_s=100.0)
    assert targets(retirement, 1, 3, {"d0", "d2"}) == 3
    assert retirement.retiring == ["d0", "d1"]


def test_worker_that_the_scheduler_does_not_hear_may_be_busy() -> None:
    retirement = Retirement(empty_s=100.0)
    victims = {Pool.DECODE: D[:3]}
    sizes = [
        retirement.targets(PoolSizes(1, 2), PoolSizes(1, 3), victims, {}, now).decode for now in (0.0, 99.0, 100.0)
    ]
    assert sizes == [3, 3, 2]


def test_load_that_comes_back_ends_the_retirement() -> None:
    retirement = Retirement(empty_s=100.0)
    targets(retirement, 2, 3, {"d0"})
    assert targets(retirement, 3, 3, {"d0"}, now=50.0) == 3
    assert retirement.retiring == []
    assert targets(retirement, 2, 3, {"d0"}, now=120.0) == 3  # its time begins anew


def test_workers_that_still_start_are_taken_back_at_once() -> None:
    retirement = Retirement(empty_s=100.0)
    assert targets(retirement, 2, 4, {"d0", "d1"}, known=2) == 2
    assert targets(retirement, 1, 4, {"d0", "d1"}, known=2) == 2
    assert retirement.retiring == ["d0"]


def test_growth_is_asked_for_at_once() -> None:
    assert targets(Retirement(empty_s=100.0), 5, 3, {"d0"}) == 5


@given(
    wanted=st.integers(0, 6),
    present=st.integers(0, 6),
    known=st.integers(0, 6),
    busy=st.sets(st.sampled_from(D)),
    now=st.floats(0, 1000),
)
def test_target_is_between_what_is_wanted_and_what_is_there(
    wanted: int, present: int, known: int, busy: set[str], now: float
) -> None:
    target = targets(Retirement(empty_s=0.0 if now > 500 else 1e9), wanted, present, busy, now, min(known, present))
    assert min(wanted, present) <= target <= max(wanted, present)
    if target < present and now <= 500:
        stopped = D[: max(0, present - target - (present - min(known, present)))]
        assert not set(stopped) & busy
