"""What the simulator is given and what it gives back: one struct per request on each side.

A workload is a list of `SimRequest` in order of arrival. Prompts have no tokens here, only hashes of their blocks: two
prompts share a prefix as far as their hashes are equal.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Self

import msgspec

from cluster.messages.ids import Outcome, Path, SloClass
from cluster.messages.kv_events import KEY_BYTES
from cluster.messages.placement import Slo

BLOCK_TOKENS = 512
"""Prompt tokens per block hash, as in the Mooncake traces."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request of a trace or a mix, before it is decided what it has to meet."""

    arrival_s: float
    num_prompt: int
    num_output: int
    block_hashes: list[bytes] = []
    tenant: str = ""
    slo_class: SloClass = SloClass.STANDARD

    def moved(self, by_s: float, salt: int | None = None) -> Self:
        """The same request at another time. Salted: its prompt shares blocks with those of the same salt alone."""
        hashes = self.block_hashes if salt is None else [_salted(block, salt) for block in self.block_hashes]
        return msgspec.structs.replace(self, arrival_s=self.arrival_s + by_s, block_hashes=hashes)


class SimRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request of a workload."""

    arrival_s: float
    """Since the start of the workload."""
    num_prompt: int
    num_output: int
    """Tokens that it generates; no policy may read it."""
    block_hashes: list[bytes] = []
    """Of the prompt's full blocks of BLOCK_TOKENS, chained from its start. Fewer: the rest is nobody else's."""
    tenant: str = ""
    slo_class: SloClass = SloClass.STANDARD
    slo: Slo


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of it."""

    arrival_s: float
    num_prompt: int
    num_output: int
    tenant: str = ""
    slo_class: SloClass = SloClass.STANDARD
    slo: Slo
    path: Path | None
    """None: it was never placed."""
    ttft_s: float | None = None
    """Since its arrival, retries and queues included."""
    tpot_s: float | None = None
    """None: it had fewer than two tokens."""
    outcome: Outcome
    num_hit_tokens: int = 0
    """Of the prompt, found in the caches of the worker that prefilled."""
    predicted_ttft_s: float | None = None
    predicted_tpot_s: float | None = None
    retry_after_s: float | None = None
    """What it was told when it was rejected."""
    num_attempts: int = 1
    """Placements that its last try took."""
    num_tries: int = 1
    """Times that it came, after having been told when to come again."""

    @property
    def is_good(self) -> bool:
        """It finished within both objectives. A single token has no TPOT to miss."""
        return (
            self.outcome is Outcome.FINISHED
            and self.ttft_s is not None
            and self.ttft_s <= self.slo.ttft_s
            and (self.tpot_s is None or self.tpot_s <= self.slo.tpot_s)
        )


def at_rate(rows: Sequence[Arrival], scale: float, slo_of: Callable[[Arrival], Slo]) -> list[SimRequest]:
    """The workload that comes `scale` times as fast as recorded."""
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
    """Mean arrivals per second."""
    return (len(rows) - 1) / (rows[-1].arrival_s - rows[0].arrival_s) if len(rows) > 1 else 0.0


def _salted(block: bytes, salt: int) -> bytes:
    return blake2b(block, digest_size=KEY_BYTES, salt=salt.to_bytes(8, "big")).digest()
