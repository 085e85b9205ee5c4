"""The step model of an engine, from the shape of its model and the peak rates of its hardware. Pure.

A step computes prompt tokens and gives one token to each request that decodes:

    step = c0 + c_L * layers + c_r * decoding
         + max(2 * P * tokens / flops, weight bytes / memory rate)      matrix products: computing or reading weights
         + 4 * layers * heads * head_dim * attended / flops             attention of the prompt tokens
         + KV bytes per token * context / memory rate                   attention of the decoding requests
         + 2 * layers * (alpha + activation bytes / all-reduce rate)    tensor parallelism

This is the roofline of Williams et al. 2009 with the terms of DistServe and Splitwise. `attended` is the
`prompt_attention` of router/prediction/step_model.py. Each rate is the share of the peak rate that engines reach in
practice. The roofline gives the coefficients of a `StepModel`: the prior of the latency models
(router/prediction/learned_latency.py), and the times of the simulator's engines.
"""

import msgspec

from router.prediction.step_model import StepModel

GPU_MEMORY_UTILIZATION = 0.9
"""Share of a device's memory that an engine takes: vLLM's default of `gpu_memory_utilization`. Higher predicts too
large KV caches; lower predicts too small ones.
"""
ACTIVATION_BYTES = 3_000_000_000
"""Bytes per device for activations, CUDA graphs and the memory of the runtime. Higher predicts too small KV caches;
lower predicts too large ones.
"""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a model that its times depend on: a decoder with grouped-query attention, dense or a mixture."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    """The value of the model's config, which is not always hidden / heads."""
    ffn: int
    """Inner width of the feed-forward network of a layer, or of one expert."""
    vocab: int
    num_ffn_matrices: int = 3
    """3 for a gated feed-forward network, else 2."""
    num_experts: int = 1
    num_active_experts: int = 1
    """Experts that one token is routed to."""
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
        """Weights of one expert in all layers, or of all feed-forward networks of a dense model."""
        return self.layers * self.num_ffn_matrices * self.hidden * self.ffn

    @property
    def active_weights(self) -> int:
        """Weights that one token is multiplied with, without those of the vocabulary."""
        return self.attention_weights + self.num_active_experts * self.expert_weights

    @property
    def num_bytes(self) -> float:
        weights = self.attention_weights + self.num_experts * self.expert_weights + 2 * self.vocab * self.hidden
        return weights * self.bytes_per_weight


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """One device: its peak rates for dense matrices, and the shares of these rates that engines reach."""

    flops: float
    """Operations per second in bf16."""
    flops_fp8: float | None = None
    """Operations per second in fp8. None if the device multiplies 8-bit weights as bf16."""
    memory_bytes_per_s: float
    memory_bytes: float
    all_reduce_bytes_per_s: float
    """Rate between the devices of one engine."""
    all_reduce_s: float = 8e-6
    """Latency of one all-reduce."""
    compute_efficiency: float = 0.70
    weight_read_efficiency: float = 0.80
    kv_read_efficiency: float = 0.70
    attention_efficiency: float = 0.50
    step_s: float = 1.5e-3
    """Fixed cost of a step."""
    layer_s: float = 10e-6
    """Fixed cost of a layer in a step, with CUDA graphs. Engines without CUDA graphs take 0.35 to 0.55 ms."""
    request_s: float = 10e-6
    """Cost of a request that decodes, per step."""


def step_model(model: ModelShape, hardware: Hardware, tensor_parallel: int = 1) -> StepModel:
    """The step model of one engine on `tensor_parallel` devices."""
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
        activation_bytes = model.hidden * 2 * 2 * (tp - 1) / tp  # bf16; a ring all-reduce sends each byte almost twice
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
        context_s=_stored_kv_bytes(model, tp) / (memory_rate * hardware.kv_read_efficiency),
        experts_s=experts_s if is_mixture else 0.0,
        unrouted=1 - model.num_active_experts / model.num_experts if is_mixture else 0.0,
    )


def kv_capacity_tokens(model: ModelShape, hardware: Hardware, tensor_parallel: int = 1) -> int:
    """Tokens for which the KV cache of one engine has memory beside the weights."""
    memory = tensor_parallel * (GPU_MEMORY_UTILIZATION * hardware.memory_bytes - ACTIVATION_BYTES)
    return max(0, int((memory - model.num_bytes) / _stored_kv_bytes(model, tensor_parallel)))


def _stored_kv_bytes(model: ModelShape, tensor_parallel: int) -> float:
    """Bytes of a token in the KV caches of all devices together. Each device keeps one head at least, so heads are kept
    several times by more devices than heads.
    """
    return model.kv_bytes_per_token * max(1.0, tensor_parallel / model.kv_heads)
