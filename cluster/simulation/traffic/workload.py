"""The input and the output of a simulation: a SimRequest and a RequestRecord for each request. Pure.

A workload is a list of SimRequest in order of arrival. Prompts have no tokens here, only hashes of their blocks. Two
prompts share a prefix as far as their hashes are equal.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Self

import msgspec

from cluster.messages.ids import Outcome, Path, SloClass
from cluster.messages.kv_events import KEY_BYTES
from cluster.messages.placement import Slo

BLOCK_TOKENS = 512
"""Prompt tokens per block hash, as in the Mooncake traces. Another number would misread those traces."""


class Speaker(StrEnum):
    """Whose message a part of a prompt is, by OpenAI's names of the roles."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class PromptPiece(msgspec.Struct, frozen=True, gc=False):
    """A part of a prompt. Two pieces with one name begin with the same tokens."""

    speaker: Speaker
    name: str
    num_tokens: int


class Arrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request of a trace or a mix, without an SLO."""

    arrival_s: float
    num_prompt: int
    num_output: int
    block_hashes: list[bytes] = []
    tenant: str = ""
    slo_class: SloClass = SloClass.STANDARD
    session: str = ""
    """Name of the conversation that the request is a turn of. Empty for a single request."""
    pieces: tuple[PromptPiece, ...] = ()
    """What the prompt consists of, where a mix knows it: finer than the hashes of blocks. Empty for rows of traces."""

    def moved(self, by_s: float, salt: int | None = None) -> Self:
        """The same request, `by_s` seconds later. With a salt, it shares blocks with requests of that salt only."""
        hashes = self.block_hashes if salt is None else [_salted(block, salt) for block in self.block_hashes]
        return msgspec.structs.replace(self, arrival_s=self.arrival_s + by_s, block_hashes=hashes)


class SimRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request of a workload."""

    arrival_s: float
    """Seconds from the start of the workload to the request's arrival."""
    num_prompt: int
    num_output: int
    """Tokens that the request generates. Policies do not know this number."""
    max_output: int | None = None
    """Most tokens that the client asks for, which policies know. None if the client sets no limit."""
    block_hashes: list[bytes] = []
    """Hashes of the prompt's full blocks (of BLOCK_TOKENS, unless its generator was told another size), each of the
    whole prefix up to its block. Blocks without a hash are shared with no prompt.
    """
    tenant: str = ""
    slo_class: SloClass = SloClass.STANDARD
    slo: Slo
    """The client's own objectives, which count where they are tighter than those of its class."""
    asked_path: Path | None = None
    """The path that the request must take. None if the policy chooses."""
    calls_tool: bool = False
    """Whether the answer calls a tool, as the workers are told."""
    follows: int | None = None
    """Number in the workload of the request that this one is the next step of, which comes before it there. The request
    arrives `gap_s` after the answer to that one, whatever `arrival_s` says. None if it arrives at `arrival_s`.
    """
    gap_s: float = 0.0


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fields of a request of a workload, and how it was served."""

    arrival_s: float
    num_prompt: int
    num_output: int
    tenant: str = ""
    slo_class: SloClass = SloClass.STANDARD
    slo: Slo
    path: Path | None
    """Path of the last placement. None if the request was never placed."""
    worker: str = ""
    """The worker that the last placement let generate. Empty if the request was never placed."""
    ttft_s: float | None = None
    """Seconds from the arrival to the first token, with all tries and queues. None without a token."""
    tpot_s: float | None = None
    """Mean seconds between two tokens. None with fewer than two tokens."""
    outcome: Outcome
    num_hit_tokens: int = 0
    """Prompt tokens that were found in the caches of the worker that computed the prompt."""
    predicted_ttft_s: float | None = None
    """TTFT that the last placement predicted, in seconds. None without a prediction."""
    predicted_tpot_s: float | None = None
    """TPOT that the last placement predicted, in seconds. None without a prediction."""
    retry_after_s: float | None = None
    """Retry-After of the last rejection, in seconds. None if no try was rejected."""
    num_attempts: int = 1
    """Number of placements in the last try."""
    num_pauses: int = 0
    """Number of times that the request was paused in the last try."""
    num_tries: int = 1
    """Number of times that the client sent the request."""

    @property
    def is_good(self) -> bool:
        """Whether the request finished within both objectives. An answer of one token has no TPOT to miss."""
        return (
            self.outcome is Outcome.FINISHED
            and self.ttft_s is not None
            and self.ttft_s <= self.slo.ttft_s
            and (self.tpot_s is None or self.tpot_s <= self.slo.tpot_s)
        )


def at_rate(rows: Sequence[Arrival], scale: float, slo_of: Callable[[Arrival], Slo]) -> list[SimRequest]:
    """The rows as a workload whose requests arrive `scale` times as fast."""
    return [
        SimRequest(
            arrival_s=row.arrival_s / scale,
            num_prompt=row.num_prompt,
            num_output=row.num_output,
            block_hashes=row.block_hashes,
            tenant=row.tenant,
            slo_class=row.slo_class,
            slo=slo_of(row),
        )
        for row in rows
    ]


def rate_per_s(rows: Sequence[Arrival]) -> float:
    """Mean number of arrivals per second. 0 for fewer than two rows."""
    return (len(rows) - 1) / (rows[-1].arrival_s - rows[0].arrival_s) if len(rows) > 1 else 0.0


def _salted(block: bytes, salt: int) -> bytes:
    return blake2b(block, digest_size=KEY_BYTES, salt=salt.to_bytes(8, "big")).digest()
