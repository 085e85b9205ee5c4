"""The latency models against published measurements, in ../shared/traces/calibration and from the sources named here.

Roofline and simulated engine: a whole run of vLLM 0.19 on three machines (LLMServingSim), each replayed with its
arrivals and lengths. Learning: measured steps of other engines (Splitwise) and links (vidur, Mooncake).
"""

import csv
import gzip
import json
import random
from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import NamedTuple

import msgspec
import pytest

from bench.data.shared_data import shared_file
from cluster.messages.reports import StepSample
from cluster.messages.transport import LinkSpeed
from cluster.simulation.engine.engine_setting import EngineSetting
from cluster.simulation.engine.single_engine import EngineArrival, serve
from router.prediction import hardware as catalogue
from router.prediction.learned_latency import LatencyModel
from router.prediction.roofline import Hardware, ModelShape, kv_capacity_tokens, step_model
from router.prediction.step_model import prompt_attention
from router.prediction.transfer import TransferModel

CALIBRATION = "traces/calibration"


def rows(name: str) -> list[dict[str, str]]:
    with gzip.open(shared_file(f"{CALIBRATION}/{name}.csv.gz"), "rt") as file:
        return list(csv.DictReader(file))


class Replay(NamedTuple):
    """Figures of a run: simulated, and measured."""

    ttft_s: tuple[float, float]
    tpot_s: list[tuple[float, float]]
    makespan_s: tuple[float, float]


def replay(
    run: str,
    model: ModelShape,
    hardware: Hardware,
    *,
    tensor_parallel: int = 1,
    max_decoding: int,
    kv_tokens: int | None = None,
) -> Replay:
    with gzip.open(shared_file(f"{CALIBRATION}/vllm0.19_{run}_requests.jsonl.gz"), "rt") as file:
        requests = sorted(map(json.loads, file), key=lambda request: request["queued_ts"])
    start = requests[0]["queued_ts"]
    setting = EngineSetting(
        kv_capacity_tokens=kv_tokens or kv_capacity_tokens(model, hardware, tensor_parallel),
        max_step_tokens=2048,
        max_decoding=max_decoding,
        block_size=16,
    )
    arrivals = [EngineArrival(r["queued_ts"] - start, r["input_toks"], r["output_toks"]) for r in requests]
    served = serve(setting, step_model(model, hardware, tensor_parallel), arrivals)
    several = [(s, r) for s, r in zip(served, requests, strict=True) if r["output_toks"] > 1]
    return Replay(
        (fmean(s.ttft_s for s in served), fmean(r["first_token_ts"] - r["queued_ts"] for r in requests)),
        [(s.tpot_s, (r["last_token_ts"] - r["first_token_ts"]) / (r["output_toks"] - 1)) for s, r in several],
        (max(s.last_at for s in served), max(r["last_token_ts"] for r in requests) - start),
    )


def mean_error(pairs: Iterable[tuple[float, float]]) -> float:
    return fmean(abs(predicted / measured - 1) for predicted, measured in pairs)


@pytest.mark.parametrize("measured_s", [0.40, 0.514, 0.533])
def test_long_prefill_of_qwen3_32b_on_two_h100_takes_what_is_published(measured_s: float) -> None:
    predicted_s = step_model(catalogue.QWEN3_32B, catalogue.H100, tensor_parallel=2).prefill_s(8192, 0, 8192)
    assert predicted_s == pytest.approx(measured_s, rel=0.2)


def test_replay_of_llama_8b_on_an_rtx_pro_6000() -> None:
    figures = replay("RTXPRO6000_Llama-3.1-8B", catalogue.LLAMA_3_1_8B, catalogue.RTX_PRO_6000, max_decoding=128)
    assert mean_error(figures.tpot_s) < 0.05
    assert mean_error([figures.ttft_s]) < 0.10
    assert mean_error([figures.makespan_s]) < 0.05


def test_replay_of_qwen3_32b_on_two_rtx_pro_6000_without_nvlink() -> None:
    figures = replay(
        "RTXPRO6000_Qwen3-32B", catalogue.QWEN3_32B, catalogue.RTX_PRO_6000, tensor_parallel=2, max_decoding=128
    )
    assert mean_error(figures.tpot_s) < 0.05
    assert mean_error([figures.ttft_s]) < 0.10
    assert mean_error([figures.makespan_s]) < 0.05


def test_replay_of_an_engine_that_preempts_because_its_memory_is_small() -> None:
    figures = replay(
        "RTX4090_Llama-3.1-8B", catalogue.LLAMA_3_1_8B, catalogue.RTX_4090, max_decoding=256, kv_tokens=41_408
    )
    assert mean_error(figures.tpot_s) < 0.15
    assert mean_error([figures.ttft_s]) < 0.15
    assert mean_error([figures.makespan_s]) < 0.15


def test_decode_step_of_opt_13b_on_an_a100_takes_what_distserve_profiled() -> None:
    with gzip.open(shared_file(f"{CALIBRATION}/distserve_profiler-a100-80g.distserve.json.gz"), "rt") as file:
        profile = json.load(file)["facebook/opt-13b"]["1"]
    base_ms, token_ms, request_ms = profile["decoding_smallbs"]
    model = step_model(catalogue.OPT_13B, catalogue.A100)
    for decoding in (1, 8, 32, 64):
        context = 600 * decoding
        measured_s = (base_ms + token_ms * context + request_ms * decoding) / 1e3
        assert model.decode_s(decoding, context) == pytest.approx(measured_s, rel=0.1)


MOONCAKE_MS = {
    128: 0.54,
    256: 0.61,
    512: 0.92,
    1024: 1.50,
    2048: 2.51,
    4096: 4.75,
    8192: 8.84,
    16384: 16.43,
    32768: 31.65,
}
"""Transfer of Qwen3-8B's KV of so many prompt tokens between two nodes with eight RoCE cards each: Mooncake's connector
in vLLM, its documentation's page on P/D disaggregation.
"""


def test_transfer_takes_what_mooncake_measured() -> None:
    link = TransferModel(catalogue.LINKS["8x400g"])
    for num_tokens, measured_ms in MOONCAKE_MS.items():
        num_bytes = num_tokens * catalogue.QWEN3_8B.kv_bytes_per_token
        assert link.seconds(num_bytes) * 1e3 == pytest.approx(measured_ms, rel=0.10)


@pytest.mark.parametrize("prior", [None, *catalogue.LINKS.values()])
def test_transfer_is_learned_from_what_mooncake_measured(prior: LinkSpeed | None) -> None:
    link, rng = TransferModel(prior), random.Random(1)
    samples = [(tokens * catalogue.QWEN3_8B.kv_bytes_per_token, ms / 1e3) for tokens, ms in MOONCAKE_MS.items()]
    for _ in range(5):
        for sample in rng.sample(samples, len(samples)):
            link.observe(*sample)
    for num_bytes, measured_s in samples:
        assert link.seconds(num_bytes) == pytest.approx(measured_s, rel=0.10)


@pytest.mark.parametrize("device", ["a100", "h100"])
def test_transfer_over_nvlink_is_learned(device: str) -> None:
    measured = [
        (int(row["size"]), float(row["time_stats.send_recv.median"]) / 1e3)
        for row in rows(f"vidur_net_{device}_dgx_send_recv")
        if row["devices_per_node"] == "2" and int(row["size"]) > 4_000_000
    ]
    random.Random(1).shuffle(measured)
    link = TransferModel(None)
    for sample in measured[:100]:
        link.observe(*sample)
    assert mean_error((link.seconds(size), seconds) for size, seconds in measured[100:]) < 0.10


LLAMA_2_70B = msgspec.structs.replace(catalogue.LLAMA_3_70B, vocab=32_000)


def splitwise_steps(hardware: str, tensor_parallel: int) -> Iterator[StepSample]:
    """Measured prefill and decode steps of an engine without CUDA graphs, in batches of one prompt length."""
    for row in rows("splitwise_perf_model"):
        batch, prompt, generated = int(row["batch_size"]), int(row["prompt_size"]), int(row["token_size"])
        engine = row["model"], row["hardware"], int(row["tensor_parallel"])
        if engine != ("llama2-70b", hardware, tensor_parallel) or (tensor_parallel, batch) == (2, 64):
            continue  # two devices cannot hold a batch of 64: those rows are no measurements
        attended = int(batch * prompt_attention(prompt, 0))
        yield StepSample(batch * prompt, attended, 0, 0, float(row["prompt_time"]) / 1e3)
        context = batch * (prompt + generated // 2)
        yield StepSample(0, 0, batch, context, float(row["token_time"]) / 1e3)


@pytest.mark.parametrize("has_prior", [True, False])
@pytest.mark.parametrize("tensor_parallel", [2, 4, 8])
@pytest.mark.parametrize(("name", "hardware"), [("a100-80gb", catalogue.A100), ("h100-80gb", catalogue.H100)])
def test_steps_are_learned_from_half_of_what_splitwise_measured(
    name: str, hardware: Hardware, tensor_parallel: int, has_prior: bool
) -> None:
    steps = list(splitwise_steps(name, tensor_parallel))
    random.Random(1).shuffle(steps)
    model = LatencyModel(step_model(LLAMA_2_70B, hardware, tensor_parallel) if has_prior else None)
    for step in steps[: len(steps) // 2]:
        model.observe(step)
    errors: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for step in steps[len(steps) // 2 :]:
        predicted_s = model.times.step_s(step.num_prefill, step.attended, step.num_decoding, step.context_tokens)
        errors[step.num_prefill > 0].append((predicted_s, step.seconds))
    assert mean_error(errors[False]) < 0.08
    assert mean_error(errors[True]) < 0.20
