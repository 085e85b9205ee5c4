"""What the simulator is given and what it gives back: one struct per request on each side.

A workload is a list of `SimRequest` in order of arrival. Prompts have no tokens here, only hashes of their blocks: two
prompts share a prefix as far as their hashes are equal.
"""

import msgspec

from cluster.types import Outcome, Path, Slo, SloClass

BLOCK_TOKENS = 512
"""Prompt tokens per block hash, as in the Mooncake traces."""


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
