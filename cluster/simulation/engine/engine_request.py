"""A request as one simulated engine sees it, and what the engine says of it. Pure."""

from collections.abc import Sequence
from enum import Enum, auto


class Phase(Enum):
    WAITING = auto()
    """In the engine's queue, without memory."""
    PULLING = auto()
    """Has memory; its KV is on its way from another engine."""
    LOADING = auto()
    """Has memory; part of its KV is on its way from the host tier."""
    READY = auto()
    """That KV has come; it joins the next step that has a seat."""
    PREFILLING = auto()
    DECODING = auto()
    KEPT = auto()
    """Prefilled for another engine, which has not pulled the KV yet."""
    ENDED = auto()


class EngineRequest:
    """Made by whoever submits it, changed by its engine alone."""

    __slots__ = (
        "block_hashes",
        "chunk",
        "decode_number",
        "is_aborted",
        "joined_at_step",
        "keeps_kv",
        "num_computed",
        "num_generated",
        "num_held",
        "num_hit_tokens",
        "num_loaded_tokens",
        "num_output",
        "num_preemptions",
        "num_private",
        "num_prompt",
        "num_pulled",
        "phase",
        "request_id",
    )

    def __init__(
        self,
        request_id: str,
        num_prompt: int,
        num_output: int,
        block_hashes: Sequence[bytes] = (),
        *,
        keeps_kv: bool = False,
        num_pulled: int = 0,
    ) -> None:
        """`num_output`: tokens to generate here. `keeps_kv`: prefill only; the KV stays until it is `released`.
        `num_pulled`: prompt tokens whose KV another engine hands over.
        """
        self.request_id = request_id
        self.num_prompt = num_prompt
        self.num_output = num_output
        self.block_hashes = block_hashes
        self.keeps_kv = keeps_kv
        self.num_pulled = num_pulled
        self.phase = Phase.WAITING
        self.is_aborted = False
        self.num_generated = 0
        """Up to the step `joined_at_step` where it decodes."""
        self.num_computed = 0
        """Tokens of its context with KV, while it prefills."""
        self.chunk = 0
        """Prompt tokens that the step which runs computes."""
        self.num_held = 0
        """Block hashes, from the first, whose shared blocks it holds."""
        self.num_private = 0
        """Tokens that it took for itself when it was admitted, without those that have become shared since."""
        self.joined_at_step = 0
        self.decode_number = 0
        """Tells the times apart that it has joined the decodes."""
        self.num_hit_tokens = 0
        """Of the prompt, found in the prefix cache when it was first admitted."""
        self.num_loaded_tokens = 0
        """Of the prompt, brought back from the host tier then."""
        self.num_preemptions = 0

    @property
    def num_to_prefill(self) -> int:
        """The context that must have KV before the next token: after a preemption, what was generated too."""
        return self.num_prompt + self.num_generated

    def __repr__(self) -> str:
        return f"EngineRequest({self.request_id}, {self.phase.name}, {self.num_computed}/{self.num_to_prefill})"


class Moment(Enum):
    """What the submitter of a request is told of it."""

    TRANSFER = auto()
    """It has memory for the KV that it is handed: begin to send `num_pulled - num_hit_tokens` tokens."""
    FIRST_TOKEN = auto()
    """With `keeps_kv`: its prefill is done."""
    FINISHED = auto()


EngineOutput = tuple[EngineRequest, Moment]
