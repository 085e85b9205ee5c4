"""How long an engine's steps take, from the model's shape and the hardware's peak rates. Pure.

A step computes some prompt tokens and gives one token to every request that decodes:

    step = c0 + c_L * layers + c_r * decoding
         + max(2 * P * tokens / flops, weight bytes / memory rate)      matrix products: computing or reading weights
         + 4 * layers * heads * head_dim * attended / flops             attention of the prompt tokens
         + KV bytes per token * context / memory rate                   attention of the decoding requests
         + 2 * layers * (alpha + activation bytes / all-reduce rate)    tensor parallelism

(the roofline of Williams et al. 2009 with the terms of DistServe and Splitwise), each rate being the share of its peak
that engines reach in practice. It gives the coefficients of a `StepModel` (router/prediction/step_model.py): the prior
of the latency models (router/prediction/latency.py) and the truth of the simulator's engines.
"""

import msgspec

from router.prediction.step_model import StepModel

GPU_MEMORY_UTILIZATION = 0.9
"""Share of a device's memory that vLLM takes by default."""
ACTIVATION_BYTES = 3_000_000_000
"""Per device: activations, CUDA graphs and the runtime's own memory."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """What of a model decides its time: a decoder with grouped-query attention, dense or mixture of experts."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    """From the model's config: not always hidden / heads."""
    ffn: int
    """Inner width of a layer's feed-forward network, or of one expert."""
    vocab: int
    num_ffn_matrices: int = 3
    """3 when gated, else 2."""
    num_experts: int = 1
    num_active_experts: int = 1
    """Per token."""
    bytes_per_weight: float = 2.0
    bytes_per_kv: float = 2.0

    @property
    def kv_bytes_per_token(self) -> int:
        return int(2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_kv)

    @property
    def attention_weights(self) -> int:
        return self.layers * 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def expert_weights(self) -> int:
        """Of one expert in every layer; of the feed-forward networks when there is only one."""
        return self.layers * self.num_ffn_matrices * self.hidden * self.ffn

    @property
    def active_weights(self) -> int:
        """That one token is multiplied with, but for the vocabulary's."""
        return self.attention_weights + self.num_active_experts * self.expert_weights

    @property
    def num_bytes(self) -> float:
        weights = self.attention_weights + self.num_experts * self.expert_weights + 2 * self.vocab * self.hidden
        return weights * self.bytes_per_weight


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """One device: its dense peak rates, and what engines reach of them."""

    flops: float
    """bf16."""
    flops_fp8: float | None = None
    """None: 8-bit weights are multiplied as bf16."""
    memory_bytes_per_s: float
    memory_bytes: float
    all_reduce_bytes_per_s: float
    """Between the devices of one engine."""
    all_reduce_s: float = 8e-6
    """Latency of one all-reduce."""
    compute_efficiency: float = 0.70
    weight_read_efficiency: float = 0.80
    kv_read_efficiency: float = 0.70
    attention_efficiency: float = 0.50
    step_s: float = 1.5e-3
    """Of every step, whatever it does."""
    layer_s: float = 10e-6
    """Of every layer of every step, with CUDA graphs; engines without them take 0.35 to 0.55 ms."""
    request_s: float = 10e-6
    """Of every request that decodes, per step."""


def step_model(model: ModelShape, hardware: Hardware, tensor_parallel: int = 1) -> StepModel:
    """Of one engine on so many devices."""
    tp = tensor_parallel
    peak = hardware.flops_fp8 if model.bytes_per_weight <= 1 and hardware.flops_fp8 else hardware.flops
    memory_rate = tp * hardware.memory_bytes_per_s
    read_rate = memory_rate * hardware.weight_read_efficiency / model.bytes_per_weight  # weights per second
    experts_s = model.num_experts * model.expert_weights / read_rate
    always_read_s = (model.attention_weights + model.vocab * model.hidden) / read_rate
    compute_s = 2 * model.active_weights / (tp * peak * hardware.compute_efficiency)
    fixed_s = hardware.step_s + model.layers * hardware.layer_s + always_read_s
    token_s = 0.0
    if tp > 1:
        activation_bytes = model.hidden * 2 * 2 * (tp - 1) / tp  # bf16; a ring sends each byte almost twice
        fixed_s += 2 * model.layers * hardware.all_reduce_s
        token_s = 2 * model.layers * activation_bytes / hardware.all_reduce_bytes_per_s
    is_mixture = model.num_experts > 1
    if not is_mixture:
        fixed_s += experts_s
    return StepModel(
        fixed_s=fixed_s,
        token_s=token_s,
        knee_tokens=(always_read_s + experts_s) / compute_s,
        beyond_knee_s=compute_s,
        attended_s=4
        * model.layers
        * model.heads
        * model.head_dim
        / (tp * hardware.flops * hardware.attention_efficiency),
        request_s=hardware.request_s,
        context_s=model.kv_bytes_per_token / (memory_rate * hardware.kv_read_efficiency),
        experts_s=experts_s if is_mixture else 0.0,
        unrouted=1 - model.num_active_experts / model.num_experts if is_mixture else 0.0,
    )


def kv_capacity_tokens(model: ModelShape, hardware: Hardware, tensor_parallel: int = 1) -> int:
    """That the KV cache of one engine holds, after the weights."""
    memory = tensor_parallel * (GPU_MEMORY_UTILIZATION * hardware.memory_bytes - ACTIVATION_BYTES)
    return max(0, int((memory - model.num_bytes) / model.kv_bytes_per_token))
