"""TiledSteps: step times with the level of a roofline and another functional form. Pure.

A policy whose latency model starts from the roofline (router/prediction/roofline.py) cannot express the following
effects, and has to live with what it learns:

- Matrix products compute whole tiles, so the tokens of a step with prompt tokens are padded (NVIDIA, "Matrix
  Multiplication Background User's Guide": tile and wave quantization).
- Steps that only decode replay CUDA graphs of fixed batch sizes, so the batch is padded to the next captured one (vLLM,
  `cudagraph_capture_sizes`).
- Computing and reading the weights overlap in part alone, so the knee is round (Yang et al. 2018, "An Empirical
  Roofline Methodology": measured kernels stay below both ceilings near the ridge).
- Small products do not fill the device: their time is that of some more tokens.
- Decoding attention reads a short context at a lower rate, because few thread blocks share the work (Dao et al. 2023,
  "Flash-Decoding for long-context inference").
- A step with prompt tokens does not replay one CUDA graph for the whole model, and so costs a fixed overhead (vLLM,
  `cudagraph_mode` FULL_AND_PIECEWISE).
- FlashAttention computes whole tiles on the diagonal of the causal mask (Dao 2023, "FlashAttention-2").
"""

from bisect import bisect_left
from typing import Final, final

from cluster.simulation.engine.truth.step_search import most_steps_within
from router.prediction.step_model import StepModel

CAPTURED: Final = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""Batch sizes of vLLM's CUDA graphs. A larger batch is not padded."""
TILES: Final = ((512, 64), (2048, 128))
"""(most tokens of a step, tokens of a tile). Larger tiles make more steps take the same time; smaller ones come closer
to the roofline.
"""
LARGEST_TILE = 256
"""Tokens of a tile in all larger steps, with the same effect."""
OVERLAP = 4.0
"""Exponent of the smooth maximum of computing and reading. Higher comes closer to the roofline's sharp knee; lower
takes longer near the knee (1 is no overlap).
"""
FILL_TOKENS = 32
"""Tokens for which a matrix product computes without a result. Higher slows small steps more; lower slows them less."""
ATTENTION_TILE = 128
"""Tokens of a tile of prompt attention. Higher makes each prompt token cost more attention; lower makes it cost less.
"""
SHORT_CONTEXT_TOKENS = 65_536
"""Context of a batch below which reading its KV blocks costs SHORT_CONTEXT_COST more. Higher slows more batches; lower
slows fewer.
"""
SHORT_CONTEXT_COST, LONG_CONTEXT_COST = 0.75, 0.75
"""Time of reading KV blocks relative to the roofline: what a short context adds, and what all contexts take. Higher
makes decoding slower with its context; lower makes it faster.
"""
PROMPT_STEP_S = 1e-3
"""Overhead of a step with prompt tokens, in seconds. Higher makes small chunks cost more; lower makes them cost less.
"""


def captured(num_decoding: int) -> int:
    """The batch size of the CUDA graph that a batch is computed with."""
    place = bisect_left(CAPTURED, num_decoding)
    return CAPTURED[place] if place < len(CAPTURED) else num_decoding


def tiled(tokens: int) -> int:
    """`tokens` padded to whole tiles."""
    tile = next((tile for most, tile in TILES if tokens <= most), LARGEST_TILE)
    return -(-tokens // tile) * tile


@final
class TiledSteps:
    """Step times of the effects above, from the coefficients of a roofline. No time falls when the work grows."""

    __slots__ = ("_launch_s", "_read_s", "_roofline")

    def __init__(self, roofline: StepModel) -> None:
        self._roofline = roofline
        all_weights_s = roofline.knee_tokens * roofline.beyond_knee_s
        self._read_s = all_weights_s - roofline.experts_s
        """Seconds for reading the weights that every step reads."""
        self._launch_s = roofline.fixed_s - self._read_s

    def step_s(self, num_new: int, attended: float, num_decoding: int, context_tokens: int) -> float:
        seconds = self._decode_attention_s(num_decoding, context_tokens, 1)
        if not num_new:
            return seconds + self._products_s(num_decoding, captured(num_decoding))
        attended += num_new * ATTENTION_TILE / 2
        seconds += PROMPT_STEP_S + attended * self._roofline.attended_s
        return seconds + self._products_s(num_new + num_decoding, tiled(num_new + num_decoding))

    def decode_run_s(self, num_decoding: int, context_tokens: int, num_steps: int) -> float:
        products_s = self._products_s(num_decoding, captured(num_decoding))
        return num_steps * products_s + self._decode_attention_s(num_decoding, context_tokens, num_steps)

    def decode_steps_within(self, num_decoding: int, context_tokens: int, seconds: float) -> int:
        return most_steps_within(self, num_decoding, context_tokens, seconds)

    def _products_s(self, tokens: int, padded: int) -> float:
        """Seconds of a step without its attention. Padding computes, but is routed to no expert."""
        roofline = self._roofline
        compute_s = (padded + FILL_TOKENS) * roofline.beyond_knee_s
        read_s = self._read_s
        if roofline.experts_s:
            read_s += roofline.experts_s * (1 - roofline.unrouted**tokens)
        products_s = float((compute_s**OVERLAP + read_s**OVERLAP) ** (1 / OVERLAP))
        return self._launch_s + padded * roofline.token_s + products_s

    def _decode_attention_s(self, num_decoding: int, context_tokens: int, num_steps: int) -> float:
        """Seconds of the attention of `num_steps` decode steps in a row."""
        if not num_decoding:
            return 0.0
        num_short = min(num_steps, max(0, -(-(SHORT_CONTEXT_TOKENS - context_tokens) // num_decoding)))
        short = _context_of_run(num_decoding, context_tokens, num_short)
        short += (num_steps - num_short) * SHORT_CONTEXT_TOKENS
        every = _context_of_run(num_decoding, context_tokens, num_steps)
        cost = LONG_CONTEXT_COST * every + SHORT_CONTEXT_COST * short
        return cost * self._roofline.context_s + num_steps * num_decoding * self._roofline.request_s


def _context_of_run(num_decoding: int, context_tokens: int, num_steps: int) -> float:
    """The context of `num_steps` decode steps in a row, together."""
    return num_steps * context_tokens + num_decoding * num_steps * (num_steps - 1) / 2
