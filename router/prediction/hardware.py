"""Models, devices and links with known figures: data of the roofline model (router/prediction/roofline.py). Pure.

Peak rates are the vendors' rates for dense matrices. An efficiency that differs from the default has its source in a
comment. `tests/unit/router/prediction/test_roofline.py` and `tests/sim/test_calibration.py` compare the figures with
published measurements.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from cluster.messages.transport import LinkSpeed
from router.prediction.roofline import Hardware, ModelShape, step_model
from router.prediction.step_model import StepModel

_GIB = 2**30

LLAMA_3_1_8B: Final = ModelShape(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256)
LLAMA_3_70B: Final = ModelShape(layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672, vocab=128256)
LLAMA_3_1_405B: Final = ModelShape(
    layers=126, hidden=16384, heads=128, kv_heads=8, head_dim=128, ffn=53248, vocab=128256
)
QWEN2_5_72B: Final = ModelShape(layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=29568, vocab=152064)
QWEN3_8B: Final = ModelShape(layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=12288, vocab=151936)
QWEN3_14B: Final = ModelShape(layers=40, hidden=5120, heads=40, kv_heads=8, head_dim=128, ffn=17408, vocab=151936)
QWEN3_32B: Final = ModelShape(layers=64, hidden=5120, heads=64, kv_heads=8, head_dim=128, ffn=25600, vocab=151936)
QWEN3_30B_A3B: Final = ModelShape(
    layers=48,
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_dim=128,
    ffn=768,
    vocab=151936,
    num_experts=128,
    num_active_experts=8,
)
QWEN3_235B_A22B: Final = ModelShape(
    layers=94,
    hidden=4096,
    heads=64,
    kv_heads=4,
    head_dim=128,
    ffn=1536,
    vocab=151936,
    num_experts=128,
    num_active_experts=8,
)
MIXTRAL_8X7B: Final = ModelShape(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14336,
    vocab=32000,
    num_experts=8,
    num_active_experts=2,
)
OPT_13B: Final = ModelShape(
    layers=40, hidden=5120, heads=40, kv_heads=40, head_dim=128, ffn=20480, vocab=50272, num_ffn_matrices=2
)
OPT_66B: Final = ModelShape(
    layers=64, hidden=9216, heads=72, kv_heads=72, head_dim=128, ffn=36864, vocab=50272, num_ffn_matrices=2
)

MODELS: Final[dict[str, ModelShape]] = {
    "llama-3.1-8b": LLAMA_3_1_8B,
    "llama-3-70b": LLAMA_3_70B,
    "llama-3.1-70b": LLAMA_3_70B,
    "llama-3.3-70b": LLAMA_3_70B,
    "llama-3.1-405b": LLAMA_3_1_405B,
    "qwen2.5-72b": QWEN2_5_72B,
    "qwen3-8b": QWEN3_8B,
    "qwen3-14b": QWEN3_14B,
    "qwen3-32b": QWEN3_32B,
    "qwen3-30b-a3b": QWEN3_30B_A3B,
    "qwen3-235b-a22b": QWEN3_235B_A22B,
    "mixtral-8x7b": MIXTRAL_8X7B,
    "opt-13b": OPT_13B,
    "opt-66b": OPT_66B,
}
"""Models by their vendors' names, in lower case and without suffixes of variants."""

A100: Final = Hardware(
    flops=312e12,
    memory_bytes_per_s=2.039e12,
    memory_bytes=80 * _GIB,
    all_reduce_bytes_per_s=200e9,
    weight_read_efficiency=0.63,  # this and the next: a fit of DistServe's profile of OPT-13B
    kv_read_efficiency=0.64,
)
H100: Final = Hardware(
    flops=989e12,
    flops_fp8=1978e12,
    memory_bytes_per_s=3.35e12,
    memory_bytes=80 * _GIB,
    all_reduce_bytes_per_s=300e9,
)
H800: Final = Hardware(
    flops=989e12,
    flops_fp8=1978e12,
    memory_bytes_per_s=3.35e12,
    memory_bytes=80 * _GIB,
    all_reduce_bytes_per_s=135e9,  # the H800 has 200 GB/s of NVLink, the H100 450
)
H200: Final = Hardware(
    flops=989e12,
    flops_fp8=1978e12,
    memory_bytes_per_s=4.8e12,
    memory_bytes=141 * _GIB,
    all_reduce_bytes_per_s=300e9,
)
B200: Final = Hardware(
    flops=2250e12,
    flops_fp8=4500e12,
    memory_bytes_per_s=7.7e12,
    memory_bytes=180 * _GIB,
    all_reduce_bytes_per_s=600e9,
)
GB200: Final = Hardware(
    flops=2500e12,
    flops_fp8=5000e12,
    memory_bytes_per_s=8.0e12,
    memory_bytes=185 * _GIB,
    all_reduce_bytes_per_s=600e9,
)
L40S: Final = Hardware(
    flops=362e12,
    flops_fp8=733e12,
    memory_bytes_per_s=0.864e12,
    memory_bytes=45 * _GIB,
    all_reduce_bytes_per_s=12e9,
    compute_efficiency=0.35,  # the device throttles: a prefill reaches a third of the peak rate
)
L4: Final = Hardware(
    flops=121e12,
    flops_fp8=242e12,
    memory_bytes_per_s=0.30e12,
    memory_bytes=24 * _GIB,
    all_reduce_bytes_per_s=12e9,
    compute_efficiency=0.65,
)
RTX_4090: Final = Hardware(
    flops=165e12,
    flops_fp8=330e12,
    memory_bytes_per_s=1.008e12,
    memory_bytes=24 * _GIB,
    all_reduce_bytes_per_s=12e9,
    compute_efficiency=0.95,  # the device boosts above the clock of the stated peak rate
    weight_read_efficiency=0.93,  # this and compute: seconds of LLMServingSim's run that had only one of both
)
RTX_PRO_6000: Final = Hardware(
    flops=468e12,
    flops_fp8=936e12,
    memory_bytes_per_s=1.792e12,
    memory_bytes=95.6 * _GIB,
    all_reduce_bytes_per_s=12e9,
    compute_efficiency=0.65,
)

DEVICES: Final[dict[str, Hardware]] = {
    "a100": A100,
    "h100": H100,
    "h800": H800,
    "h200": H200,
    "gb200": GB200,
    "b200": B200,
    "l40s": L40S,
    "l4": L4,
    "rtx 4090": RTX_4090,
    "rtx pro 6000": RTX_PRO_6000,
}
"""Devices by the part of the driver's device name that identifies the device, in lower case."""

LINKS: Final[dict[str, LinkSpeed]] = {
    "nvlink": LinkSpeed(latency_s=0.2e-3, bytes_per_s=250e9),
    "8x400g": LinkSpeed(latency_s=0.38e-3, bytes_per_s=146e9),
    "400g": LinkSpeed(latency_s=0.5e-3, bytes_per_s=49.5e9),
    "100g": LinkSpeed(latency_s=0.5e-3, bytes_per_s=12.1e9),
    "tcp": LinkSpeed(latency_s=1e-3, bytes_per_s=0.55e9),
    "tcp-host": LinkSpeed(latency_s=1e-3, bytes_per_s=4.0e9),
}
"""Speeds that a handoff between two workers reaches, by link: NVLink peer to peer; eight RoCE cards as measured by
Mooncake; one InfiniBand or RoCE card (two speeds); UCX over TCP from GPU memory, and from host memory.
"""


def prior(kind: str) -> StepModel | None:
    """The step model of a kind of engine before its first step, or None without figures for the kind. `kind` is
    "<model>|<device>|tp<devices>|...". Further fields, such as the engine's version and pool, do not change the prior.
    """
    model, device, *rest = [*kind.lower().split("|"), "", ""]
    model_name, device_name = longest_part(MODELS, model), longest_part(DEVICES, device)
    if model_name is None or device_name is None:
        return None
    shape, hardware = MODELS[model_name], DEVICES[device_name]
    if "fp8" in model:
        shape = msgspec.structs.replace(shape, bytes_per_weight=1.0)
    sizes = [int(field[2:]) for field in rest if field.startswith("tp") and field[2:].isdecimal()]
    return step_model(shape, hardware, max(1, *sizes, 1))


def longest_part(names: Iterable[str], text: str) -> str | None:
    """The longest of the names that the text contains as whole words: some names are parts of longer ones, and "GH200"
    is no H200. `text`: in lower case.
    """
    found = (name for name in names if re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", text))
    return max(found, key=len, default=None)
