"""How long an engine's step takes, from the model's shape and the hardware's peak rates. Pure.

A step computes some prompt tokens and gives one token to every request that decodes:

    step = c0 + c_L * layers + c_r * decoding
         + max(2 * P * tokens / flops, weight bytes / memory rate)      matrix products: computing or reading weights
         + 4 * layers * heads * head_dim * attended / flops             attention of the prompt tokens
         + KV bytes per token * context / memory rate                   attention of the decoding requests
         + 2 * layers * (alpha + activation bytes / all-reduce rate)    tensor parallelism

(the roofline of Williams et al. 2009 with the terms of DistServe and Splitwise), each rate being a share of the peak
that engines reach in practice. Attention over a prompt is quadratic, so the chunks that it is cut into do not change
its sum: `prompt_attention`. That makes a prefill and a run of decode steps closed forms, however long.

It is the prior of the latency models (router/latency.py) and the truth of the simulator's engines.
"""

from math import sqrt

import msgspec

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


def prompt_attention(num_new: float, num_cached: float) -> float:
    """Pairs of tokens that attention relates when `num_new` tokens follow `num_cached`, in however many chunks."""
    return num_new * num_cached + num_new * (num_new + 1) / 2


class StepModel:
    """The time of one engine's steps: constants of the formula above, so that an answer takes about a microsecond."""

    __slots__ = (
        "_attended_s",
        "_base_s",
        "_context_s",
        "_expert_read_s",
        "_experts",
        "_request_s",
        "_token_linear_s",
        "_token_reduce_s",
        "_untouched",
        "_weight_read_s",
        "kv_bytes_per_token",
        "kv_capacity_tokens",
    )

    def __init__(self, model: ModelShape, hardware: Hardware, tensor_parallel: int = 1) -> None:
        tp = tensor_parallel
        peak = hardware.flops_fp8 if model.bytes_per_weight <= 1 and hardware.flops_fp8 else hardware.flops
        memory_rate = tp * hardware.memory_bytes_per_s
        read_rate = memory_rate * hardware.weight_read_efficiency / model.bytes_per_weight  # weights per second
        always_read = model.attention_weights + model.vocab * model.hidden
        self._token_linear_s = 2 * model.active_weights / (tp * peak * hardware.compute_efficiency)
        self._experts = model.num_experts
        self._untouched = 1 - model.num_active_experts / model.num_experts
        self._expert_read_s = model.expert_weights / read_rate
        self._weight_read_s = (always_read + model.expert_weights) / read_rate  # with one expert
        self._attended_s = (
            4 * model.layers * model.heads * model.head_dim / (tp * hardware.flops * hardware.attention_efficiency)
        )
        self._context_s = model.kv_bytes_per_token / (memory_rate * hardware.kv_read_efficiency)
        self._request_s = hardware.request_s
        self._base_s = hardware.step_s + model.layers * hardware.layer_s
        self._token_reduce_s = 0.0
        if tp > 1:
            activation_bytes = model.hidden * 2 * 2 * (tp - 1) / tp  # bf16; a ring sends each byte almost twice
            self._base_s += 2 * model.layers * hardware.all_reduce_s
            self._token_reduce_s = 2 * model.layers * activation_bytes / hardware.all_reduce_bytes_per_s
        self.kv_bytes_per_token = model.kv_bytes_per_token
        free = tp * (GPU_MEMORY_UTILIZATION * hardware.memory_bytes - ACTIVATION_BYTES) - model.num_bytes
        self.kv_capacity_tokens = max(0, int(free / model.kv_bytes_per_token))

    def step_s(self, num_new: float, attended: float, num_decoding: float, context_tokens: float) -> float:
        """`attended`: the `prompt_attention` of the new tokens; `context_tokens`: of all decoding requests together."""
        tokens = num_new + num_decoding
        computing = tokens * self._token_linear_s
        reading = self._weight_read_s if self._experts == 1 else self._read_s(tokens)
        return (
            self._base_s
            + num_decoding * self._request_s
            + (computing if computing > reading else reading)
            + attended * self._attended_s
            + context_tokens * self._context_s
            + tokens * self._token_reduce_s
        )

    def decode_s(self, num_decoding: float, context_tokens: float) -> float:
        return self.step_s(0, 0.0, num_decoding, context_tokens)

    def prefill_s(
        self,
        num_new: int,
        num_cached: int,
        max_step_tokens: int,
        num_decoding: int = 0,
        context_tokens: float = 0.0,
    ) -> float:
        """Of a prompt that is computed in chunks beside the requests that decode there, each of which gets a token per
        chunk (Sarathi-Serve).
        """
        if num_new <= 0:
            return 0.0
        chunk = max(1, max_step_tokens - num_decoding)
        num_full, rest = divmod(num_new, chunk)
        seconds = num_full * self.step_s(chunk, 0.0, num_decoding, context_tokens)
        seconds += self.step_s(rest, 0.0, num_decoding, context_tokens) if rest else 0.0
        steps = num_full + (rest > 0)
        grown = num_decoding * steps * (steps - 1) / 2
        return seconds + prompt_attention(num_new, num_cached) * self._attended_s + grown * self._context_s

    def decode_run_s(self, num_decoding: int, context_tokens: float, num_steps: int) -> float:
        """Of so many decode steps one after the other; the context grows by `num_decoding` tokens with each."""
        grown = num_decoding * num_steps * (num_steps - 1) / 2
        return num_steps * self.decode_s(num_decoding, context_tokens) + grown * self._context_s

    def decode_steps_within(self, num_decoding: int, context_tokens: float, seconds: float) -> int:
        """The most steps that `decode_run_s` does not take longer than `seconds` for."""
        growth_s = num_decoding * self._context_s
        slope = self.decode_s(num_decoding, context_tokens) - growth_s / 2
        if seconds <= 0:
            return 0
        steps = int(2 * seconds / (slope + sqrt(slope * slope + 2 * growth_s * seconds)))
        while self.decode_run_s(num_decoding, context_tokens, steps + 1) <= seconds:  # the root is rounded
            steps += 1
        while steps and self.decode_run_s(num_decoding, context_tokens, steps) > seconds:
            steps -= 1
        return steps

    def _read_s(self, tokens: float) -> float:
        """Reading the weights of a mixture of experts: of each layer's, those that some token was routed to."""
        touched = self._experts * (1 - self._untouched**tokens)
        return self._weight_read_s + (max(touched, 1.0) - 1) * self._expert_read_s
