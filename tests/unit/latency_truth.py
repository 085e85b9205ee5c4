"""Engines whose step times are known, and the noisy steps that they report: what latency models are tested with."""

import random
from collections.abc import Callable
from statistics import fmean

import msgspec

from cluster.messages.reports import StepSample
from router.prediction import hardware
from router.prediction.learned_latency import LatencyModel
from router.prediction.roofline import step_model
from router.prediction.step_model import StepModel, prompt_attention

NOISE, OUTLIERS = 0.08, 0.01

GPU = step_model(hardware.QWEN3_32B, hardware.H100, tensor_parallel=2)
MIXTURE = step_model(hardware.QWEN3_30B_A3B, hardware.H100)
CPU = StepModel(
    fixed_s=6e-3, token_s=1e-4, knee_tokens=0, beyond_knee_s=0, attended_s=1e-8, request_s=1e-4, context_s=1e-8
)
"""A tiny model on a few cores: no step is short, and every token costs."""


Draw = Callable[[random.Random], StepSample]


def prefill_step(rng: random.Random) -> StepSample:
    new, past = min(2048, 1 + int(rng.lognormvariate(6.5, 1))), rng.choice([0, 0, 2048, 6144, 20_000])
    return StepSample(new, int(prompt_attention(new, past)), 0, 0, 0.0)


def decode_step(rng: random.Random) -> StepSample:
    decoding = rng.randint(1, 120)
    return StepSample(0, 0, decoding, int(decoding * rng.uniform(500, 4000)), 0.0)


def mixed_step(rng: random.Random) -> StepSample:
    """A step of an engine that prefills and decodes. Most steps only decode."""
    kind = rng.random()
    if kind < 0.7:
        return decode_step(rng)
    prefill = prefill_step(rng)
    if kind > 0.9:
        return prefill
    decode = decode_step(rng)
    return msgspec.structs.replace(prefill, num_decoding=decode.num_decoding, context_tokens=decode.context_tokens)


def exact_s(truth: StepModel, step: StepSample) -> float:
    return truth.step_s(step.num_prefill, step.attended, step.num_decoding, step.context_tokens)


def measured(truth: StepModel, step: StepSample, rng: random.Random) -> StepSample:
    noise = max(0.2, rng.gauss(1, NOISE)) * (5 if rng.random() < OUTLIERS else 1)
    return msgspec.structs.replace(step, seconds=exact_s(truth, step) * noise)


def mean_error(model: LatencyModel, truth: StepModel, draw: Draw) -> float:
    """The mean error of predictions for steps that were not learned from, against their time without noise."""
    rng = random.Random(20)
    steps = [draw(rng) for _ in range(100)]
    return fmean(abs(exact_s(model.times, step) / exact_s(truth, step) - 1) for step in steps)
