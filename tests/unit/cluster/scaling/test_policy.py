import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.scaling import Peak, PoolBounds, ScalingConfig
from cluster.messages.ids import Pool
from cluster.scaling.correction import BOUNDS
from cluster.scaling.policy import LONGEST_GAP_S, RATES_EVERY_S, ScalingPolicy
from cluster.scaling.pool_sizes import PoolSizes
from tests.unit.cluster.scaling.readings import ENGINE, a_config, a_pool, a_reading

MONDAY_S = 4 * 86400.0
"""1970-01-05 was a Monday."""


class Served:
    """Pools that follow a policy at once, and a load that meets its objectives."""

    def __init__(self, config: ScalingConfig | None = None, num_decode: int = 1) -> None:
        self.policy = ScalingPolicy(config or a_config())
        self.sizes = PoolSizes(1, num_decode)
        self.now = 0.0
        self.num_arrived = 0.0
        self.scheduler = "s"
        self.history = [self.sizes]

    def run(self, seconds: float, per_s: float = 0.0, *, attained: float = 0.97, **fields: object) -> PoolSizes:
        """Look once a second. `fields` are those of the readings."""
        for _ in range(round(seconds)):
            self.now += 1.0
            self.num_arrived += per_s
            number = round(self.num_arrived)
            reading = a_reading(
                number,
                num_good=round(attained * number),
                num_missed=number - round(attained * number),
                scheduler=self.scheduler,
                **({"prefill": self.sizes.prefill, "decode": self.sizes.decode} | fields),  # type: ignore[arg-type]  # any fields
            )
            self.sizes = self.policy.sizes(reading, self.sizes, self.now, MONDAY_S + self.now)
            self.history.append(self.sizes)
        return self.sizes

    def restart_scheduler(self) -> None:
        self.scheduler += "'"
        self.num_arrived = 0.0


def test_pools_grow_with_the_load_and_keep_a_ratio() -> None:
    served = Served()
    small, large = served.run(200, 30.0), served.run(300, 120.0)
    assert small.total < large.total
    assert large.total == pytest.approx(4 * small.total, rel=0.4)
    assert large.prefill > large.decode > 1  # prompts of 1,500 tokens take more than answers of 200


def test_pools_come_down_to_the_floor_by_themselves_when_traffic_stops() -> None:
    served = Served()
    served.run(200, 120.0)
    assert served.run(600) == PoolSizes(1, 1)


def test_pools_come_down_late_and_up_at_once() -> None:
    served = Served(a_config(down_after_s=200.0))
    before = served.run(300, 120.0)
    assert served.run(190, 30.0) == before
    assert served.run(300, 30.0).total < before.total
    assert served.run(60, 120.0).total >= before.total - 1


def test_steady_load_keeps_the_sizes() -> None:
    served = Served()
    served.run(400, 60.0)
    num_before = len(served.history)
    served.run(600, 60.0)
    assert len(set(served.history[num_before:])) <= 2  # the correction may find that one fewer does


def test_small_load_takes_one_worker_for_both_kinds_of_work_where_a_pool_may_be_empty() -> None:
    config = a_config(prefill=PoolBounds(max=4, min=0), decode=PoolBounds(max=4, min=1))
    served = Served(config)
    assert served.run(400, 0.1) == PoolSizes(0, 1)
    grown = served.run(300, 60.0)
    assert grown.prefill > 0


def test_waiting_requests_ask_for_workers_beside_those_that_arrive() -> None:
    served = Served()
    before = served.run(300, 30.0)
    assert served.run(1, 30.0, num_waiting=3000).total > before.total


def test_full_kv_memory_asks_for_decode_workers() -> None:
    served = Served(num_decode=4)
    before = served.run(20, 1.0, kv_share=0.5)
    after = served.run(20, 1.0, kv_share=1.0)
    assert after.decode >= before.decode
    assert Served(num_decode=4).run(300, 1.0, kv_share=0.99).decode >= 4


def test_misses_while_the_sizes_stand_ask_for_more_workers() -> None:
    fine, late = Served(), Served()
    assert late.run(600, 60.0, attained=0.6).total > fine.run(600, 60.0, attained=0.95).total


def test_rates_are_computed_anew_when_engines_turn_out_slower() -> None:
    served = Served(a_config(down_after_s=1000.0))
    before = served.run(300, 60.0)
    slow = msgspec.structs.replace(
        ENGINE, step_coefficients={name: 2 * value for name, value in ENGINE.step_coefficients.items()}
    )

    def run_slow(seconds: int) -> PoolSizes:
        for _ in range(seconds):
            pools = (a_pool("p", served.sizes.prefill), a_pool("d", served.sizes.decode))
            prefill, decode = (msgspec.structs.replace(pool, engine=slow) for pool in pools)
            served.run(1, 60.0, prefill=prefill, decode=decode)
        return served.sizes

    assert run_slow(round(RATES_EVERY_S) + 5).total >= 1.7 * before.total


class Observed:
    """A policy whose pools have other workers than those that were ordered."""

    def __init__(self, ordered: PoolSizes, *, per_s: float = 60.0) -> None:
        self.policy = ScalingPolicy(a_config())
        self.ordered, self.per_s = ordered, per_s
        self.now = 0.0
        self.num_arrived = 0.0
        self.num_good = self.num_missed = 0
        self.scheduler = "s"

    def run(self, seconds: int, live: PoolSizes, *, good: int = 0, missed: int = 0) -> float:
        """`good`, `missed`: requests that end in each second. Returns the correction."""
        for _ in range(seconds):
            self.now += 1.0
            self.num_arrived += self.per_s
            self.num_good += good
            self.num_missed += missed
            reading = a_reading(
                round(self.num_arrived),
                *live,
                num_good=self.num_good,
                num_missed=self.num_missed,
                scheduler=self.scheduler,
            )
            self.policy.sizes(reading, self.ordered, self.now, MONDAY_S + self.now)
        return self.policy.correction

    def restart_scheduler(self) -> None:
        self.scheduler += "'"
        self.num_arrived = 0.0
        self.num_good = self.num_missed = 0


MODELLED = PoolSizes(6, 3)
"""What the model asks for where 60 requests come per second: 8.6 workers."""


def test_misses_count_only_where_all_ordered_workers_are_there() -> None:
    assert Observed(MODELLED.changed(Pool.DECODE, 1)).run(200, MODELLED, good=30, missed=30) == 1.0
    assert Observed(MODELLED).run(200, MODELLED, good=30, missed=30) > 1.2


def test_good_times_count_by_the_workers_that_live_for_each_one_that_the_model_asks_for() -> None:
    many = PoolSizes(10, 10)
    assert Observed(many).run(400, many, good=60) == 1.0
    assert Observed(many).run(400, MODELLED, good=60) < 0.85
    few = Observed(MODELLED).run(3600, PoolSizes(3, 1), good=60)
    assert few == BOUNDS[0]  # the ratio is to the workers of the model, and not to those that its correction leaves


def test_correction_begins_anew_with_a_scheduler_that_counts_from_zero() -> None:
    observed = Observed(MODELLED)
    assert observed.run(600, MODELLED, good=58, missed=3) == pytest.approx(1.0, abs=0.01)
    observed.restart_scheduler()
    assert observed.run(70, MODELLED, good=30, missed=30) > 1.1


def test_correction_begins_anew_after_a_gap_whose_misses_say_nothing_of_the_workers() -> None:
    observed = Observed(MODELLED)
    before = observed.run(600, MODELLED, good=58, missed=3)
    observed.num_missed += 20_000
    observed.now += LONGEST_GAP_S + 1.0
    assert observed.run(25, MODELLED, good=58, missed=3) == before
    assert observed.run(60, MODELLED, good=58, missed=3) == pytest.approx(before, abs=0.01)


def test_learned_correction_keeps_a_new_policy_from_taking_workers_that_are_needed() -> None:
    assert ScalingPolicy(a_config(), correction=1.7).correction == 1.7
    new, again = Served(), Served()
    again.policy = ScalingPolicy(a_config(), correction=1.7)
    assert again.run(20, 60.0).total >= 1.5 * new.run(20, 60.0).total


def test_standby_workers_come_on_top() -> None:
    assert Served(a_config(standby=2)).run(300, 60.0).total == Served().run(300, 60.0).total + 2


def test_peak_of_the_week_has_its_workers_before_it_begins() -> None:
    config = a_config(peaks=(Peak(start="00:10", end="00:20", days=("mon",), prefill=3, decode=5),), start_s=60.0)
    served = Served(config)
    served.run(530)
    assert served.sizes == PoolSizes(1, 1)
    served.run(60)
    assert served.sizes == PoolSizes(3, 5)
    served.run(1200)
    assert served.sizes == PoolSizes(1, 1)


def test_new_scheduler_that_knows_nothing_changes_nothing() -> None:
    served = Served()
    before = served.run(300, 120.0)
    served.restart_scheduler()
    assert served.run(90, 0.0, sample=[]) == before  # not even down: the new one has not watched for long enough


def test_restarted_scheduler_does_not_hide_the_load() -> None:
    served = Served()
    before = served.run(300, 120.0)
    served.restart_scheduler()
    num_before = len(served.history)
    served.run(400, 120.0)
    assert min(sizes.total for sizes in served.history[num_before:]) >= before.total - 1


def test_time_in_which_nothing_was_read_is_no_time_without_traffic() -> None:
    served = Served(a_config(down_after_s=300.0))
    before = served.run(400, 120.0)
    served.now += 310.0  # the Scheduler was away: it has counted nothing, and ingresses have placed
    num_before = len(served.history)
    served.run(200, 120.0)
    assert min(sizes.total for sizes in served.history[num_before:]) >= before.total


@given(
    loads=st.lists(st.tuples(st.integers(1, 40), st.floats(0, 400)), min_size=1, max_size=6),
    least=st.integers(0, 3),
    standby=st.integers(0, 3),
    attained=st.floats(0, 1),
    waiting=st.integers(0, 10**6),
)
def test_sizes_are_within_the_bounds_whatever_comes(
    loads: list[tuple[int, float]], least: int, standby: int, attained: float, waiting: int
) -> None:
    config = a_config(prefill=PoolBounds(max=6, min=least), decode=PoolBounds(max=9, min=1), standby=standby)
    served = Served(config)
    for seconds, per_s in loads:
        served.run(seconds, per_s, attained=attained, num_waiting=waiting)
    for sizes in served.history[1:]:
        assert least <= sizes.prefill <= 6
        assert 1 <= sizes.decode <= 9
