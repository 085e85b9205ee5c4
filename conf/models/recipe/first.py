"""The weights before training: two attention layers that can already look up what followed an earlier token.

A small model finds this circuit only after many millions of tokens. Here the circuit is built in before the first step,
and training turns it into recall. Layer 0 copies the token one and two places back into free dimensions. Layer 1 looks
for an earlier place where the same token stood before, with and without one word between ("Tosk is 9037").
"""

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

LAYERS = 2  # the attention of this many layers is built
SCALE = 0.04  # of the embedding
USED = 128  # the embedding fills dimensions 1 to USED - 1; dimension 0 is the same for all tokens
CONTENT = slice(1, 65)  # the dimensions that the built-in heads compare and copy
HEAD = 64
FAST = 4  # the pairs with the fastest rotation tell near positions apart
SLOW = 16  # from this pair on the rotation is so slow that contents match over long distances
SHARP = 2.0
COPY = 0.12
QUIET = 0.05


def _head(number: int) -> slice:
    return slice(number * HEAD, (number + 1) * HEAD)


def _slow_reader(start: int) -> Tensor:
    """A projection of 32 residual dimensions, beginning with `first`, to the slow pairs of a head."""
    rows = list(range(SLOW, HEAD // 2)) + list(range(HEAD // 2 + SLOW, HEAD))
    weight = torch.zeros(HEAD, 2 * USED)
    for i, row in enumerate(rows):
        weight[row, start + i] = 1.0
    return weight


def _looks_back(distance: int, theta: float) -> Tensor:
    """The query whose score with a constant key is greatest at this distance."""
    query = torch.zeros(HEAD)
    for pair in range(FAST):
        angle = torch.tensor(distance * theta ** (-2 * pair / HEAD))
        query[pair], query[pair + HEAD // 2] = torch.cos(angle), -torch.sin(angle)
    return query


def _build_previous(model: Qwen3ForCausalLM, theta: float) -> None:
    """Layer 0: head 0 writes the content one place back to USED.., head 1 the content two places back after it."""
    layer = model.model.layers[0].self_attn
    layer.q_norm.weight.fill_(SHARP)
    layer.k_norm.weight.fill_(SHARP)
    layer.k_proj.weight[_head(0), 0] = 3 * _looks_back(0, theta)
    layer.v_proj.weight[_head(0)] = 0.0
    layer.v_proj.weight[_head(0), CONTENT] = torch.eye(HEAD)
    for number in (0, 1):
        layer.q_proj.weight[_head(number), 0] = 3 * _looks_back(number + 1, theta)
        layer.o_proj.weight[:, _head(number)] = 0.0
        start = USED + number * HEAD
        layer.o_proj.weight[start : start + HEAD, _head(number)] = SCALE * torch.eye(HEAD)


def _build_lookup(model: Qwen3ForCausalLM) -> None:
    """Layer 1: KV head 0 matches this token with the one before a place, KV head 1 the same with a word between."""
    layer = model.model.layers[1].self_attn
    layer.q_norm.weight.fill_(SHARP)
    layer.k_norm.weight.fill_(SHARP)
    for number, (asked, known) in enumerate(((CONTENT.start, USED), (USED, USED + HEAD))):
        layer.k_proj.weight[_head(number)] = _slow_reader(known)
        layer.v_proj.weight[_head(number)] = 0.0
        layer.v_proj.weight[_head(number), CONTENT] = torch.eye(HEAD)
        layer.q_proj.weight[_head(2 * number)] = _slow_reader(asked)
        layer.o_proj.weight[:, _head(2 * number)] = 0.0
        layer.o_proj.weight[CONTENT, _head(2 * number)] = COPY * torch.eye(HEAD)


def build(model: Qwen3ForCausalLM) -> None:
    """Puts the two layers into a new model of width 256 with four heads and two KV heads."""
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding.normal_(0.0, SCALE)
        embedding[:, 0] = 4 * SCALE
        embedding[:, USED:] = 0.0
        for layer in model.model.layers:  # what the other parts write at first would only be noise
            layer.self_attn.o_proj.weight.mul_(QUIET)
            layer.mlp.down_proj.weight.mul_(QUIET)
        _build_previous(model, model.config.rope_parameters["rope_theta"])
        _build_lookup(model)
