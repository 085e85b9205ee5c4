"""What a token of KV memory costs while memory is scarce, in requests that find no room because of it. Pure.

A request holds its KV blocks until its answer ends. Where the memory of all workers is nearly full, a long prompt takes
the room of several other requests, which would be refused. So the price counts the request's KV tokens in requests of
the size of those that hold the memory now. Where memory is free, the price is nothing.

The sizes of requests that merely come must not count: many tiny ones would make the memory of all others look huge.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from router.load.decode_slack import logistic
from router.load.worker_state import WorkerState

SCARCE_SHARE: Final = 0.85
"""Share of all KV memory that is reserved when a further request displaces half a request of its size. Higher admits
long prompts until short ones find no room; lower refuses long prompts while there is room for them.
"""
SOFTNESS: Final = 0.05
"""Width of the rise of the price around SCARCE_SHARE, as a share of the memory. Higher makes free memory cost
something; lower makes memory cost nothing until it is gone.
"""


def kv_price(workers: Sequence[WorkerState]) -> float:
    """Requests that one KV token displaces."""
    reserved = sum([worker.kv_reserved for worker in workers])
    capacity = sum([worker.kv_capacity for worker in workers])
    if not reserved or capacity == inf:
        return 0.0
    num_held = max(1, sum([len(worker.charges) for worker in workers]))
    return logistic((reserved / capacity - SCARCE_SHARE) / SOFTNESS) * num_held / reserved
