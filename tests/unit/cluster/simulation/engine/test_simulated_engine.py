from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.simulation.engine.engine_request import EngineRequest, Moment, Phase
from cluster.simulation.engine.engine_setting import EngineSetting
from cluster.simulation.engine.simulated_engine import SimulatedEngine
from cluster.simulation.engine.single_engine import EngineArrival, serve
from tests.unit.cluster.simulation.linear_steps import LinearSteps

MODEL = LinearSteps()


def a_setting(**changes: Any) -> EngineSetting:
    return EngineSetting(**{"kv_capacity_tokens": 100_000, "max_step_tokens": 1000, "block_size": 100, **changes})


def hashes(name: str, number: int) -> list[bytes]:
    return [f"{name}{i}".encode() for i in range(number)]


class Driver:
    """Runs an engine and notes when what happened."""

    def __init__(self, setting: EngineSetting, model: LinearSteps = MODEL) -> None:
        self.engine = SimulatedEngine(setting, model)
        self.moments: dict[tuple[str, Moment], float] = {}

    def run(self, until: float = float("inf")) -> None:
        while self.engine.next_at < until:
            now = self.engine.next_at
            for request, moment in self.engine.advance():
                key = (request.request_id, moment)
                assert key not in self.moments
                self.moments[key] = now
            self.engine.validate()

    def submit(self, request: EngineRequest, at: float) -> EngineRequest:
        self.run(at)
        self.engine.submit(request, at)
        return request

    def first_at(self, request: EngineRequest) -> float:
        return self.moments[request.request_id, Moment.FIRST_TOKEN]

    def last_at(self, request: EngineRequest) -> float:
        return self.moments[request.request_id, Moment.FINISHED]


def test_lone_request_takes_its_prefill_and_then_its_decode_run() -> None:
    (served,) = serve(a_setting(), MODEL, [EngineArrival(5.0, 2500, 101)])
    prefill_s = 3 * 0.010 + 2500 * 1e-4
    assert served.ttft_s == pytest.approx(prefill_s)
    assert served.last_at - served.first_at == pytest.approx(MODEL.decode_run_s(1, 2501, 100))


def test_single_token_ends_with_its_prefill() -> None:
    (served,) = serve(a_setting(), MODEL, [EngineArrival(0.0, 500, 1)])
    assert served.last_at == served.first_at == pytest.approx(0.060)


def test_chunks_of_a_prompt_attend_to_all_that_comes_before() -> None:
    model = LinearSteps(attended_s=1e-7)
    (served,) = serve(a_setting(), model, [EngineArrival(0.0, 2500, 1)])
    assert served.ttft_s == pytest.approx(0.280 + 1e-7 * 2500 * 2501 / 2)


def test_prompt_beside_decodes_delays_each_of_them_by_its_chunks() -> None:
    setting = a_setting()
    alone = serve(setting, MODEL, [EngineArrival(0.0, 100, 200)])[0]
    beside = serve(setting, MODEL, [EngineArrival(0.0, 100, 200), EngineArrival(0.5, 1998, 1)])[0]
    delay_s = beside.last_at - alone.last_at
    assert delay_s == pytest.approx(1998 * 1e-4)  # 999 tokens in each of two steps, which the decode shares


def test_prompts_are_computed_first_come_first_served() -> None:
    first, second = serve(a_setting(), MODEL, [EngineArrival(0.0, 3000, 1), EngineArrival(0.001, 500, 1)])
    assert first.last_at < second.first_at


def test_who_comes_in_the_middle_of_a_decode_run_waits_for_the_step_that_is_under_way() -> None:
    model = LinearSteps(context_s=0.0)
    early, late = serve(a_setting(), model, [EngineArrival(0.0, 100, 1000), EngineArrival(0.1355, 100, 1)])
    step_began = 0.020 + 10 * 0.011
    assert late.first_at == pytest.approx(step_began + 0.011 + 0.010 + 0.010 + 0.001)
    assert early.last_at == pytest.approx(0.020 + 999 * 0.011 + 0.010)


def test_seats_are_never_exceeded() -> None:
    served = serve(a_setting(max_decoding=2), MODEL, [EngineArrival(0.0, 100, 50)] * 3)
    assert served[2].first_at > min(served[0].last_at, served[1].last_at)


def test_shortage_of_memory_preempts_the_latest_and_loses_nothing() -> None:
    setting = a_setting(kv_capacity_tokens=1000)
    served = serve(setting, MODEL, [EngineArrival(0.0, 300, 400), EngineArrival(0.0, 300, 400)])
    assert [s.num_preemptions for s in served] == [0, 1]
    assert served[1].last_at > served[0].last_at
    alone = serve(setting, MODEL, [EngineArrival(0.0, 300, 400)])[0]
    assert served[0].last_at < served[1].last_at < 2 * alone.last_at


def test_prompt_waits_until_all_of_it_has_memory() -> None:
    served = serve(
        a_setting(kv_capacity_tokens=1000), MODEL, [EngineArrival(0.0, 600, 100), EngineArrival(0.0, 600, 1)]
    )
    assert served[1].first_at > served[0].last_at
    assert served[1].num_preemptions == 0


def test_request_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        serve(a_setting(kv_capacity_tokens=1000), MODEL, [EngineArrival(0.0, 900, 101)])


def test_known_prefix_is_not_computed_again() -> None:
    driver = Driver(a_setting())
    driver.submit(EngineRequest("a", 950, 1, hashes("x", 9)), 0.0)
    again = driver.submit(EngineRequest("b", 950, 1, hashes("x", 9)), 1.0)
    driver.run()
    assert again.num_hit_tokens == 900
    assert driver.first_at(again) == pytest.approx(1.0 + 0.010 + 50 * 1e-4)


def test_last_token_of_a_prompt_is_always_computed() -> None:
    driver = Driver(a_setting())
    driver.submit(EngineRequest("a", 900, 1, hashes("x", 9)), 0.0)
    again = driver.submit(EngineRequest("b", 900, 1, hashes("x", 9)), 1.0)
    driver.run()
    assert again.num_hit_tokens == 800


def test_evicted_prefix_comes_back_from_the_host_tier_at_its_speed() -> None:
    driver = Driver(a_setting(kv_capacity_tokens=1000, host_tokens=5000, host_tokens_per_s=10_000.0))
    driver.submit(EngineRequest("a", 950, 1, hashes("x", 9)), 0.0)
    driver.submit(EngineRequest("b", 950, 1, hashes("y", 9)), 1.0)
    again = driver.submit(EngineRequest("c", 950, 1, hashes("x", 9)), 2.0)
    driver.run()
    assert (again.num_hit_tokens, again.num_loaded_tokens) == (0, 900)
    assert driver.first_at(again) == pytest.approx(2.0 + 900 / 10_000 + 0.010 + 50 * 1e-4)


def test_handed_over_request_needs_memory_first_and_then_decodes_without_prefill() -> None:
    driver = Driver(a_setting(kv_capacity_tokens=1500))
    driver.submit(EngineRequest("running", 900, 100), 0.0)
    pulled = driver.submit(EngineRequest("pulled", 701, 10, num_pulled=700), 0.05)
    driver.run(1.0)
    assert pulled.phase is Phase.WAITING
    driver.run()
    transfer_at = driver.moments["pulled", Moment.TRANSFER]
    assert transfer_at == driver.moments["running", Moment.FINISHED]
    driver.engine.pulled(pulled, 700, transfer_at + 0.3)
    driver.run()
    assert driver.first_at(pulled) == pytest.approx(transfer_at + 0.3 + MODEL.decode_run_s(1, 701, 1))
    assert driver.last_at(pulled) == pytest.approx(transfer_at + 0.3 + MODEL.decode_run_s(1, 701, 10))


def test_prefill_for_another_engine_keeps_its_memory_until_it_is_released() -> None:
    driver = Driver(a_setting(kv_capacity_tokens=1000))
    kept = driver.submit(EngineRequest("kept", 700, 1, keeps_kv=True), 0.0)
    other = driver.submit(EngineRequest("other", 500, 1, keeps_kv=True), 0.0)
    driver.run()
    assert (kept.phase, other.phase) == (Phase.KEPT, Phase.WAITING)
    driver.engine.release(kept, 2.0)
    driver.run()
    assert driver.first_at(other) == pytest.approx(2.0 + 0.060)


def test_abort_frees_everything_in_every_phase() -> None:
    setting = a_setting(kv_capacity_tokens=2000, max_decoding=2)
    driver = Driver(setting)
    requests = [
        driver.submit(EngineRequest("decoding", 100, 500, hashes("x", 1)), 0.0),
        driver.submit(EngineRequest("pulling", 101, 500, hashes("x", 1), num_pulled=100), 0.1),
        driver.submit(EngineRequest("prefilling", 1500, 5, hashes("y", 15)), 0.2),
        driver.submit(EngineRequest("waiting", 900, 5), 0.2),
    ]
    driver.run(0.3)
    assert [r.phase for r in requests] == [Phase.DECODING, Phase.PULLING, Phase.PREFILLING, Phase.WAITING]
    for request in requests:
        driver.engine.abort(request, 0.3)
    driver.run()
    assert driver.engine.is_empty
    assert driver.engine.cache.available_tokens == 2000
    assert not any(moment is Moment.FINISHED for _, moment in driver.moments)


def test_load_in_the_middle_of_a_run_counts_the_steps_that_are_over() -> None:
    driver = Driver(a_setting(), LinearSteps(context_s=0.0))
    request = driver.submit(EngineRequest("a", 100, 1000), 0.0)
    driver.run(0.1)
    load = driver.engine.load(0.020 + 10.5 * 0.011)
    assert (load.num_running, load.num_waiting) == (1, 0)
    assert driver.engine.steps.generated(request, 0.020 + 10.5 * 0.011) == 11
    assert load.kv_cache_usage == pytest.approx((100 + 10 + 1) / 100_000, abs=1e-5)


def test_step_samples_obey_the_step_model_and_are_few() -> None:
    driver = Driver(a_setting(), model := LinearSteps(attended_s=1e-7))
    for i in range(30):
        driver.submit(EngineRequest(str(i), 1500, 20), 0.1 * i)
    driver.run()
    samples = driver.engine.steps.take_samples()
    assert 0 < len(samples) <= 8
    for s in samples:
        expected = model.step_s(s.num_prefill, s.attended, s.num_decoding, s.context_tokens)
        assert s.seconds == pytest.approx(expected, rel=1e-4)
    assert driver.engine.steps.take_samples() == []


requests_strategy = st.lists(
    st.tuples(
        st.floats(0.0, 0.3),  # gap before it
        st.integers(1, 900),  # prompt
        st.integers(1, 100),  # output
        st.sampled_from("xyz"),  # whose prefix
        st.sampled_from(["whole", "kept", "pulled"]),
        st.none() | st.floats(0.0, 1.0),  # aborted so long after it came
    ),
    max_size=25,
)


@settings(max_examples=100)
@given(requests_strategy, st.sampled_from([0, 1500]), st.integers(1, 6))
def test_whatever_comes_every_request_ends_once_and_leaves_no_memory_behind(
    arrivals: list[tuple[Any, ...]], host_tokens: int, max_decoding: int
) -> None:
    driver = Driver(a_setting(kv_capacity_tokens=1000, max_decoding=max_decoding, host_tokens=host_tokens))
    events, at = [], 0.0
    for number, (gap, prompt, output, prefix, kind, abort_after) in enumerate(arrivals):
        at += gap
        pulled = max(prompt - 1, 0) if kind == "pulled" else 0
        request = EngineRequest(
            str(number), prompt, output, hashes(prefix, prompt // 100), keeps_kv=kind == "kept", num_pulled=pulled
        )
        events.append((at, 0, number, request))
        if abort_after is not None:
            events.append((at + abort_after, 1, number, request))
    for when, is_abort, _, request in sorted(events, key=lambda event: event[:3]):
        driver.run(when)
        if is_abort:
            driver.engine.abort(request, when)
        else:
            driver.engine.submit(request, when)
        serve_others(driver, [event[3] for event in events], when)
    for _ in range(200):
        driver.run()
        serve_others(driver, [event[3] for event in events], 1000.0)
    assert driver.engine.is_empty
    assert driver.engine.cache.available_tokens == 1000
    for *_, request in events:
        assert request.phase is Phase.ENDED
        if not request.is_aborted:
            assert (request.request_id, Moment.FIRST_TOKEN) in driver.moments
            assert request.num_generated == (1 if request.keeps_kv else request.num_output)


def serve_others(driver: Driver, requests: list[EngineRequest], now: float) -> None:
    """The other engines: they take what is kept and send what is pulled."""
    for request in requests:
        if request.phase is Phase.KEPT:
            driver.engine.release(request, now)
        elif request.phase is Phase.PULLING:
            driver.engine.pulled(request, request.num_pulled, now)
