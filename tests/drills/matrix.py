"""The drills as data: every moment of a request's life with every fault, what the client sees, and how long it may take
until its answer, until every surviving engine has its KV blocks back, and until the service is whole again.
"""

from dataclasses import dataclass
from typing import Any

from tests.drills.faults import FAULTS
from tests.drills.moments import MOMENTS
from tests.drills.processes import DECODE, INGRESS, PREFILL, SCHEDULER

SERVICE: dict[str, Any] = {
    # Small steps: a prefill takes long enough to be seen half done
    "prefill": {"replicas": 2, "cpus": 0.2, "engine": {"max_num_batched_tokens": 32, "max_num_seqs": 32}},
    # So that what has lost its decode worker is handed over again, rather than computed there in a single step
    "decode": {"replicas": 2, "cpus": 0.2, "engine": {"max_num_batched_tokens": 64}},
    "ingress": {"replicas": 2, "cpus": 0.3, "allow_path_header": True, "verified_share": 1.0, "metrics_max_age_s": 0},
}
NUM_REPLICAS = {INGRESS: 2, SCHEDULER: 1, PREFILL: 2, DECODE: 2}

BYSTANDER_SILENCE_S = 15.0
"""Between two tokens of a stream that nothing has happened to, where two cores also start engines."""


@dataclass(frozen=True)
class Bounds:
    """Seconds. Generous where another process has to be started; the table has what was measured."""

    silence_s: float
    """The longest time without a token, from the fault on."""
    kv_back_s: float
    """Seconds until all KV blocks are free, from the end of the fault or of the answer, whichever comes later. From the
    fault on, `kv_back_since_fault_s`.
    """
    whole_s: float
    """Seconds until the service is whole again, from the fault."""

    def kv_back_since_fault_s(self, decodes: bool, over_s: float) -> float:
        """The bound `kv_back_s` for an engine, from the fault on. Longer by what must come first: all of the
        answer for an engine that decodes it, and a token of it at most for one that only computes prompts. `over_s`:
        from the fault to its end or that of the answer.
        """
        return self.kv_back_s + (over_s if decodes else min(over_s, self.silence_s))


BOUNDS = {
    "client leaves": Bounds(silence_s=1, kv_back_s=1, whole_s=5),
    "prefill SIGKILL": Bounds(silence_s=BYSTANDER_SILENCE_S, kv_back_s=2, whole_s=120),
    "decode SIGKILL": Bounds(silence_s=BYSTANDER_SILENCE_S, kv_back_s=5, whole_s=120),
    # A lease that was redeemed and is not read any more lasts four seconds, and whoever wakes has ten to catch up with
    "prefill SIGSTOP 10 s": Bounds(silence_s=15, kv_back_s=8, whole_s=30),
    "Scheduler SIGKILL": Bounds(silence_s=10, kv_back_s=2, whole_s=60),
    "ingress SIGKILL": Bounds(silence_s=1, kv_back_s=1, whole_s=90),
    "transfer path cut": Bounds(silence_s=20, kv_back_s=10, whole_s=60),
}

ORPHANS = {
    (moment, fault) for moment in ("handed over", "pulling") for fault in ("decode SIGKILL", "prefill SIGSTOP 10 s")
}
"""Where a lease may expire: it has been redeemed, and whoever would give it back is dead, or not heard in time. In all
other rows whoever wants the blocks no more says so.
"""


@dataclass(frozen=True)
class Cell:
    moment: str
    fault: str

    @property
    def bounds(self) -> Bounds:
        return BOUNDS[self.fault]

    @property
    def max_expired(self) -> int:
        """Leases."""
        return int((self.moment, self.fault) in ORPHANS)

    @property
    def seed(self) -> int:
        return 101 + CELLS.index(self)

    def __str__(self) -> str:
        return f"{self.moment}, {self.fault}"


CELLS = [Cell(moment, fault) for fault in FAULTS for moment in MOMENTS]
