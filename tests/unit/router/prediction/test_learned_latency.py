"""Latency models learn what engines take: from a good prior, from a bad one, from none, and while it changes."""

import random
from math import inf, isfinite, nan
from statistics import fmean

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import WorkerId
from cluster.messages.reports import StepSample
from cluster.messages.transport import LinkSpeed
from router.prediction import hardware
from router.prediction.learned_latency import (
    LatencyModel,
    LatencyModels,
)
from router.prediction.step_chunk import FIRST_STEP_SOFTNESS, LEAST_OF_TPOT, LEAST_STEP_SOFTNESS, MOST_OF_TPOT
from router.prediction.step_model import StepModel
from tests.expected import present
from tests.unit.latency_truth import (
    CPU,
    GPU,
    MIXTURE,
    Draw,
    decode_step,
    exact_s,
    mean_error,
    measured,
    mixed_step,
    prefill_step,
)

SEEDS = range(8)


def taught(model: LatencyModel, truth: StepModel, draw: Draw, num_samples: int, seed: int) -> LatencyModel:
    rng = random.Random(seed)
    for _ in range(num_samples):
        model.observe(measured(truth, draw(rng), rng))
    return model


def mean_error_after(
    num_samples: int,
    prior: StepModel | None,
    truth: StepModel,
    *,
    learns: Draw = mixed_step,
    predicts: Draw = mixed_step,
) -> float:
    return fmean(
        mean_error(taught(LatencyModel(prior), truth, learns, num_samples, seed), truth, predicts) for seed in SEEDS
    )


@pytest.mark.parametrize("draw", [prefill_step, decode_step, mixed_step])
@pytest.mark.parametrize("factor", [0.5, 1, 2])
def test_hundred_samples_correct_a_prior_to_two_percent(draw: Draw, factor: float) -> None:
    assert mean_error_after(100, GPU.scaled(factor), GPU, learns=draw, predicts=draw) < 0.02


@pytest.mark.parametrize("truth", [GPU, MIXTURE, CPU], ids=["gpu", "mixture", "cpu"])
def test_unknown_kind_is_known_after_fifty_samples(truth: StepModel) -> None:
    assert mean_error_after(20, None, truth) < 0.15
    assert mean_error_after(50, None, truth) < 0.05
    assert mean_error_after(100, None, truth) < 0.03


@pytest.mark.parametrize("factor", [0.1, 10])
def test_prior_that_is_wrong_tenfold_is_corrected_by_twenty_samples(factor: float) -> None:
    assert mean_error_after(20, GPU.scaled(factor), GPU) < 0.05
    assert mean_error_after(20, None, CPU.scaled(factor)) < 0.15


@pytest.mark.parametrize("draw", [prefill_step, decode_step, mixed_step])
def test_drift_is_followed_within_a_hundred_samples(draw: Draw) -> None:
    slow = GPU.scaled(1.4)
    errors: dict[int, list[float]] = {20: [], 100: [], 300: []}
    for seed in SEEDS:
        model = taught(LatencyModel(GPU), GPU, draw, 400, seed)
        learned = 0
        for num_samples, found in errors.items():
            taught(model, slow, draw, num_samples - learned, 100 + seed + num_samples)
            learned = num_samples
            found.append(mean_error(model, slow, draw))
    assert fmean(errors[20]) < 0.15
    assert fmean(errors[100]) < 0.03
    assert fmean(errors[300]) < 0.03


def test_drift_that_decodes_show_holds_for_prefills() -> None:
    model = taught(LatencyModel(GPU), GPU, mixed_step, 400, 1)
    taught(model, GPU.scaled(1.4), decode_step, 100, 2)
    assert mean_error(model, GPU.scaled(1.4), prefill_step) < 0.1


def test_prefill_is_not_forgotten_while_an_engine_only_decodes() -> None:
    model = taught(LatencyModel(GPU.scaled(1.5)), GPU, mixed_step, 300, 1)
    taught(model, GPU, decode_step, 5000, 2)
    assert mean_error(model, GPU, prefill_step) < 0.06
    assert mean_error(model, GPU, mixed_step) < 0.04


def test_small_prefill_beside_decodes_is_nearly_free_below_the_knee() -> None:
    model = taught(LatencyModel(GPU), GPU, mixed_step, 200, 1)
    alone, beside = model.times.decode_s(16, 16_000), model.times.prefill_s(64, 0, 2048, 16, 16_000)
    assert beside < 1.1 * alone


def test_error_of_each_kind_of_step_is_the_noise_of_its_samples() -> None:
    model = taught(LatencyModel(GPU), GPU, decode_step, 300, 1)
    assert model.errors().prefill is None
    assert 0.03 < present(model.errors().decode) < 0.15
    taught(model, GPU.scaled(2), prefill_step, 1, 1)
    assert present(model.errors().prefill) > 0.3


def test_steps_with_prompts_are_as_uncertain_as_they_were_lately() -> None:
    model = LatencyModel(GPU)
    assert (model.bound.share, model.bound.softness) == (LEAST_OF_TPOT, FIRST_STEP_SOFTNESS)
    rng = random.Random(1)
    for _ in range(100):
        step = prefill_step(rng)
        model.observe(msgspec.structs.replace(step, seconds=exact_s(GPU, step)))
    assert (model.bound.share, model.bound.softness) == (MOST_OF_TPOT, LEAST_STEP_SOFTNESS)
    for number in range(100):
        step = prefill_step(rng)
        model.observe(msgspec.structs.replace(step, seconds=exact_s(GPU, step) * (1.4 if number % 2 else 0.6)))
    assert model.bound.share == LEAST_OF_TPOT
    assert 0.05 < model.bound.softness < 0.2


def test_kinds_are_learned_apart_from_the_prior_of_their_names() -> None:
    models = LatencyModels()
    known = models.model("Qwen/Qwen3-32B|NVIDIA H100 80GB HBM3|tp2|0.32.0|decode")
    assert known.times == GPU
    taught(known, CPU, decode_step, 10, 1)
    assert models.model("Qwen/Qwen3-32B|NVIDIA H100 80GB HBM3|tp2|0.32.0|prefill").times == GPU
    assert len(models.errors()) == 2


def test_links_of_a_worker_that_is_gone_are_forgotten() -> None:
    models, proved = LatencyModels(), LinkSpeed(latency_s=1e-3, bytes_per_s=1e9)
    p, d = WorkerId("p"), WorkerId("d")
    link = models.transfers.link(p, d, proved)
    assert models.transfers.link(p, d, None) is link
    models.forget(d)
    assert models.transfers.link(p, d, None) is not link


@pytest.mark.parametrize(
    ("kind", "slower_than"),
    [
        ("Qwen/Qwen3-32B|NVIDIA H100 80GB HBM3|tp4", "Qwen/Qwen3-32B|NVIDIA GB200|tp4"),
        ("Qwen/Qwen3-32B|NVIDIA L40S|tp4", "Qwen/Qwen3-32B|NVIDIA H100 80GB HBM3|tp4"),
        ("meta-llama/Llama-3.1-8B-Instruct|NVIDIA L4|tp1", "meta-llama/Llama-3.1-8B-Instruct|NVIDIA L40S|tp1"),
        ("Qwen/Qwen3-8B|NVIDIA H100 PCIe|tp1", "Qwen/Qwen3-8B-FP8|NVIDIA H100 PCIe|tp1"),
        ("Qwen/Qwen3-8B|NVIDIA H100 PCIe", "Qwen/Qwen3-8B|NVIDIA H100 PCIe|tp2|x"),
    ],
)
def test_kind_names_its_prior(kind: str, slower_than: str) -> None:
    slow, fast = present(hardware.prior(kind)), present(hardware.prior(slower_than))
    assert slow.decode_s(8, 8000) > fast.decode_s(8, 8000)


@pytest.mark.parametrize("kind", ["", "baton/demo|cpu|tp1", "Qwen/Qwen3-32B|cpu|tp1", "demo|NVIDIA H100|tp1", "||tpx"])
def test_kind_without_figures_has_no_prior(kind: str) -> None:
    assert hardware.prior(kind) is None


anything = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5000)
samples = st.lists(
    st.builds(
        StepSample,
        anything,
        anything,
        anything,
        anything,
        st.floats() | st.floats(1e-4, 10.0),
    ),
    max_size=60,
)
work = st.tuples(st.integers(0, 200_000), st.integers(0, 200_000), st.integers(0, 500), st.integers(0, 2_000_000))


@given(samples=samples, prior=st.sampled_from([None, GPU, MIXTURE]), work=work, more=work)
def test_predictions_are_finite_and_grow_with_the_work_whatever_was_observed(
    samples: list[StepSample], prior: StepModel | None, work: tuple[int, int, int, int], more: tuple[int, int, int, int]
) -> None:
    model = LatencyModel(prior)
    for sample in samples:
        model.observe(sample)
    new, cached, decoding, context = work
    grown = [amount + extra for amount, extra in zip(work, more, strict=True)]

    assert isfinite(model.times.decode_s(decoding, context)) and model.times.decode_s(decoding, context) > 0
    slack = 1 + 1e-9  # rounding
    assert model.times.decode_s(decoding, context) <= model.times.decode_s(grown[2], context) * slack
    assert model.times.decode_s(decoding, context) <= model.times.decode_s(decoding, grown[3]) * slack
    prefill_s = model.times.prefill_s(1 + new, cached, 2048, decoding, context)
    assert isfinite(prefill_s) and prefill_s > 0
    assert prefill_s <= model.times.prefill_s(1 + grown[0], cached, 2048, decoding, context) * slack
    assert prefill_s <= model.times.prefill_s(1 + new, grown[1], 2048, decoding, context) * slack
    assert prefill_s <= model.times.prefill_s(1 + new, cached, 2048, decoding, grown[3]) * slack


@pytest.mark.parametrize("seconds", [nan, inf, -inf, 0.0, -1.0, 1e-9, 1e9])
def test_sample_of_no_meaning_teaches_nothing(seconds: float) -> None:
    model = LatencyModel(GPU)
    model.observe(StepSample(100, 5050, 3, 3000, seconds))
    model.observe(StepSample(0, 0, 0, 0, 0.1))
    model.observe(StepSample(-1, 0, 2, 0, 0.1))
    assert model.times == GPU
    assert model.errors().prefill is None and model.errors().decode is None
