"""A request of one simulated engine, and the moments that the engine reports of it. Pure."""

from collections.abc import Sequence
from enum import Enum, auto
from math import inf


class Phase(Enum):
    WAITING = auto()
    """The request is in the engine's queue, without memory."""
    PULLING = auto()
    """The request has memory, and its KV is on its way from another engine."""
    LOADING = auto()
    """The request has memory, and part of its KV is on its way from the DRAM tier."""
    READY = auto()
    """That KV has come. The request joins the next step that has a seat."""
    PREFILLING = auto()
    DECODING = auto()
    KEPT = auto()
    """The request is prefilled for another engine, which has not pulled the KV yet."""
    ENDED = auto()


class EngineRequest:
    """The submitter makes a request; only its engine changes it."""

    __slots__ = (
        "block_hashes",
        "chunk",
        "decode_number",
        "due_at",
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
        "rank",
        "request_id",
        "tpot_s",
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
        due_at: float = inf,
        tpot_s: float = inf,
    ) -> None:
        """`num_output`: tokens to generate here. `keeps_kv`: a prefill whose KV stays until it is released.
        `num_pulled`: prompt tokens whose KV comes from another engine. `due_at`: when the first token is due; `tpot_s`:
        the TPOT objective.
        """
        self.request_id = request_id
        self.num_prompt = num_prompt
        self.num_output = num_output
        self.block_hashes = block_hashes
        self.keeps_kv = keeps_kv
        self.num_pulled = num_pulled
        self.due_at = due_at
        self.tpot_s = tpot_s
        self.rank = 0
        """Rank of the SLO class. Memory goes from the highest rank first."""
        self.phase = Phase.WAITING
        self.is_aborted = False
        self.num_generated = 0
        """Tokens that were generated, for a decoding request up to the step `joined_at_step`."""
        self.num_computed = 0
        """Tokens of the context with KV, while the request prefills."""
        self.chunk = 0
        """Prompt tokens that the step under way computes."""
        self.num_held = 0
        """Block hashes, from the first, whose shared blocks the request holds."""
        self.num_private = 0
        """Tokens of memory that the request alone holds, without those that have become shared."""
        self.joined_at_step = 0
        self.decode_number = 0
        """Number of the last time that the request joined the decoding ones. Older entries of the batch are void."""
        self.num_hit_tokens = 0
        """Prompt tokens that were found in the prefix cache when the request was first admitted."""
        self.num_loaded_tokens = 0
        """Prompt tokens that were brought back from the DRAM tier."""
        self.num_preemptions = 0

    @property
    def num_to_prefill(self) -> int:
        """Tokens that must have KV before the next one is generated: the prompt, and what was generated before a
        preemption.
        """
        return self.num_prompt + self.num_generated

    def __repr__(self) -> str:
        return f"EngineRequest({self.request_id}, {self.phase.name}, {self.num_computed}/{self.num_to_prefill})"


class Moment(Enum):
    """What the engine reports of a request to its submitter."""

    TRANSFER = auto()
    """The request has memory for the KV of its handoff: `num_pulled - num_hit_tokens` tokens may be sent."""
    FIRST_TOKEN = auto()
    """With `keeps_kv`, the prefill is done."""
    FINISHED = auto()


EngineOutput = tuple[EngineRequest, Moment]
