"""The weights of the model that follows scripts: computed, not trained. It is an OPT model of two layers.

Layer 0. Each token attends to the latest marker before it or on it, and takes the marker's kind and position. Its
feed-forward part then computes how many tokens ago that was (modulo each period).

Layer 1. Each token attends to the latest token of a step of the same kind that has an offset larger by one, and takes
that token's code. Behind the marker `[step 2]` of the answer, that is the first token of step 2 in the script; behind
this one, the second, and so on. The head of the model turns the code into the token. Behind the last token of a step no
token fits. Then it attends to the markers that begin or end a turn or a script. All markers have one code, and the head
turns it into the end of the turn.
"""

import math

import torch
from torch import Tensor

from chat import END, END_OF_TEXT, OTHERWISE_MARKER, STEPS, TURN_END, TURN_START
from layout import CODE, DIGITS, HEAD, HIDDEN, NUM_HEADS, OTHER_KIND, OTHERWISE_KIND, PADDING, PERIODS, Layout

POSITIONS = math.prod(DIGITS)
POSITION_OFFSET = 2
"""Rows of OPT's table of positions in front of the first one."""
FEED_FORWARD = sum(period * period for period in PERIODS)
NEARER = 128.0
"""Score by which layer 0 prefers a marker that is one token nearer. Scores are divided by sqrt(HEAD): 11 nats."""
IS_MARKER = 2.0 * NEARER * POSITIONS
"""Score of a marker in layer 0: more than any distance."""
LATER = 8.0
"""Score by which layer 1 prefers a token that is one token nearer. Equal steps of two scripts are at least 20 tokens
apart, which is 14 nats.
"""
IS_SAME = 8.0 * LATER * POSITIONS
"""Score of an equal step, and of an equal offset by one period, in layer 1: eight times any distance."""
IS_END = (len(PERIODS) + 0.5) * IS_SAME
"""Score of the markers that end a step, in layer 1: less than a token that fits has, and more than any other."""
LEAST_GAP = 24
"""Least distance of a logit from that of the right token, in nats: the product of a code with itself, less that with
another code.
"""


def codes(num: int) -> Tensor:
    """Codes of `num` tokens, shape [num, CODE]: as many +1 as -1, and none near another one. The seed is fixed."""
    generator = torch.Generator().manual_seed(7)
    found = torch.empty((0, CODE))
    while len(found) < num:
        signs = torch.ones(CODE)
        signs[torch.randperm(CODE, generator=generator)[: CODE // 2]] = -1.0
        if not len(found) or (found @ signs).max() <= CODE - LEAST_GAP:
            found = torch.cat([found, signs[None]])
    return found


class Weights:
    """`state`: the tensors of the checkpoint, by name, in float32."""

    def __init__(self, ids: dict[str, int], num_tokens: int) -> None:
        """`ids`: the token ids of the markers. `num_tokens`: the size of the vocabulary."""
        self._at = Layout()
        self._ids = ids
        self._codes = codes(num_tokens)
        self._markers = [*STEPS, OTHERWISE_MARKER, END, TURN_START, TURN_END, END_OF_TEXT]
        self._codes[[ids[name] for name in self._markers]] = self._codes[ids[TURN_END]].clone()
        self.state: dict[str, Tensor] = {
            "model.decoder.embed_tokens.weight": self._tokens(),
            "model.decoder.embed_positions.weight": self._positions(),
            "lm_head.weight": self._head(),
        }
        self._norm("model.decoder.final_layer_norm")
        for layer in range(2):
            self._norm(f"model.decoder.layers.{layer}.self_attn_layer_norm")
            self._norm(f"model.decoder.layers.{layer}.final_layer_norm")
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                self._linear(f"model.decoder.layers.{layer}.self_attn.{name}", HIDDEN, HIDDEN)
            self._linear(f"model.decoder.layers.{layer}.fc1", FEED_FORWARD, HIDDEN)
            self._linear(f"model.decoder.layers.{layer}.fc2", HIDDEN, FEED_FORWARD)
        self._latest_marker()
        self._offset()
        self._next_of_the_step()

    def _tokens(self) -> Tensor:
        at, rows = self._at, torch.zeros(len(self._codes), HIDDEN)
        rows[:, at.code.all] = self._codes
        rows[:, at.is_marker[0]] = rows[:, at.kind[OTHER_KIND]] = 1.0
        for name in self._markers:
            row = rows[self._ids[name]]
            row[at.is_marker.all] = torch.tensor([0.0, 1.0])
        for kind, name in enumerate([*STEPS, OTHERWISE_MARKER]):
            assert kind <= OTHERWISE_KIND
            row = rows[self._ids[name]]
            row[at.kind[OTHER_KIND]], row[at.kind[kind]] = 0.0, 1.0
        return rows

    def _positions(self) -> Tensor:
        at, rows = self._at, torch.zeros(POSITIONS + POSITION_OFFSET, HIDDEN)
        numbers = torch.arange(POSITIONS)
        those = numbers + POSITION_OFFSET
        for index, digit in enumerate(at.digits):
            rows[those, digit.start + numbers // math.prod(DIGITS[:index]) % digit.size] = 1.0
        for period, group in zip(PERIODS, at.position, strict=True):
            rows[those, group.start + numbers % period] = 1.0
        rows[:, at.places_of_attention.all] = rows[:, at.places_of_offset.all] = 1.0
        rows[:, at.padding.all] = torch.tensor(PADDING, dtype=torch.float32)
        return rows

    def _head(self) -> Tensor:
        rows = torch.zeros(len(self._codes), HIDDEN)
        rows[:, self._at.copied.all] = self._codes
        silent = [self._ids[name] for name in self._markers if name != TURN_END]
        rows[silent] = 0.0
        return rows

    def _norm(self, name: str) -> None:
        self.state[f"{name}.weight"] = torch.ones(HIDDEN)
        self.state[f"{name}.bias"] = torch.zeros(HIDDEN)

    def _linear(self, name: str, outputs: int, inputs: int) -> None:
        self.state[f"{name}.weight"] = torch.zeros(outputs, inputs)
        self.state[f"{name}.bias"] = torch.zeros(outputs)

    def _latest_marker(self) -> None:
        """The attention of layer 0. Its scores are those of a query that is the same everywhere."""
        at, names = self._at, "model.decoder.layers.0.self_attn"
        query, key = self.state[f"{names}.q_proj.bias"], self.state[f"{names}.k_proj.weight"]
        value, out = self.state[f"{names}.v_proj.weight"], self.state[f"{names}.out_proj.weight"]
        query[0], key[0, at.is_marker[1]] = IS_MARKER, 1.0
        self._prefer_nearer(query, key, 1, NEARER)
        taken = 0
        pairs = [*zip(at.position, at.start, strict=True), (at.kind, at.step)]
        for source, target in pairs:
            for index in range(source.size):
                value[taken, source[index]] = out[target[index], taken] = 1.0
                taken += 1
        assert taken <= HEAD
        self.state[f"{names}.out_proj.bias"][at.places_of_attention.all] = -1.0

    def _prefer_nearer(self, query: Tensor, key: Tensor, first: int, score: float) -> None:
        """Add `score` for each token of a key's position, in the dimensions of a head from `first` on."""
        for index, digit in enumerate(self._at.digits):
            for value in range(digit.size):
                query[first] = score * value * math.prod(DIGITS[:index])
                key[first, digit[value]] = 1.0
                first += 1
        assert first <= HEAD

    def _offset(self) -> None:
        """The feed-forward part of layer 0: position minus start, modulo each period, by an AND for each pair."""
        at, names = self._at, "model.decoder.layers.0"
        inner, outer = self.state[f"{names}.fc1.weight"], self.state[f"{names}.fc2.weight"]
        self.state[f"{names}.fc1.bias"][:] = -1.0
        neuron = 0
        for period, position, start, offset in zip(PERIODS, at.position, at.start, at.offset, strict=True):
            for here in range(period):
                for there in range(period):
                    inner[neuron, position[here]] = inner[neuron, start[there]] = 1.0
                    outer[offset[here - there], neuron] = 1.0
                    neuron += 1
        self.state[f"{names}.fc2.bias"][at.places_of_offset.all] = -1.0

    def _next_of_the_step(self) -> None:
        """The attention of layer 1."""
        at, names = self._at, "model.decoder.layers.1.self_attn"
        query, key = self.state[f"{names}.q_proj.weight"], self.state[f"{names}.k_proj.weight"]
        value, out = self.state[f"{names}.v_proj.weight"], self.state[f"{names}.out_proj.weight"]
        for feature in (at.is_marker[1], at.kind[OTHER_KIND]):  # both: a marker of no step
            key[0, feature] = 1.0
        self.state[f"{names}.q_proj.bias"][0], self.state[f"{names}.k_proj.bias"][0] = IS_END, -1.0
        dimension = 1
        for kind in range(OTHER_KIND):
            query[dimension, at.step[kind]], key[dimension, at.step[kind]] = IS_SAME, 1.0
            dimension += 1
        for offset in at.offset:
            for index in range(offset.size):
                query[dimension, offset[index]], key[dimension, offset[index + 1]] = IS_SAME, 1.0
                if offset[index + 1] == offset[0]:  # a marker has offset 0, and one of no step fits nothing
                    key[dimension] -= key[0]
                    self.state[f"{names}.k_proj.bias"][dimension] = 1.0
                dimension += 1
        self._prefer_nearer(self.state[f"{names}.q_proj.bias"], key, dimension, LATER)
        for index in range(CODE):
            value[index, at.code[index]] = out[at.copied[index], index] = 1.0


def config(num_tokens: int, end: int, padding: int) -> dict[str, object]:
    """config.json."""
    assert NUM_HEADS * HEAD == HIDDEN
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "activation_function": "relu",
        "bos_token_id": None,
        "do_layer_norm_before": True,
        "dropout": 0.0,
        "dtype": "bfloat16",
        "enable_bias": True,
        "eos_token_id": end,
        "ffn_dim": FEED_FORWARD,
        "hidden_size": HIDDEN,
        "layer_norm_elementwise_affine": True,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": NUM_HEADS,
        "num_hidden_layers": 2,
        "pad_token_id": padding,
        "tie_word_embeddings": False,
        "vocab_size": num_tokens,
        "word_embed_proj_dim": HIDDEN,
    }
