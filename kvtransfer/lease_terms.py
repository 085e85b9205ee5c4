"""The terms of leases, for both sides of a handoff: what a prefill worker promises, and how a lease may end.
Pure.

A lease is the promise of a prefill worker to keep the KV blocks of a prompt that it has computed. It is *offered* to
the ingress that asked for the prefill, and *redeemed* once, by the decode worker that will pull the blocks. A redeemed
lease is a promise of a few seconds, which its holder extends while it waits for its pull. The table of leases is in
prefill/lease_table.py. How long an offered lease waits is `kv_lease_s` (cluster/config/pools.py).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NewType

import msgspec

LeaseId = NewType("LeaseId", str)
"""The prefill engine's own id of the request, which it never uses twice."""
PROMISE_S = 4.0
"""Seconds that each promise runs. Longer keeps the blocks of a dead decode worker for longer; shorter breaks the
promises of a decode worker that is slow to extend them, which then computes the prompt itself.
"""


def engine_lease_s(offer_s: float) -> float:
    """Seconds of vLLM's own lease, at the end of which the engine frees the blocks in any case. Baton's leases end
    first.
    """
    return offer_s + 2 * PROMISE_S


class LeaseEnd(StrEnum):
    """How a lease ended."""

    READ = "read"
    """The decode engine has notified the prefill engine that it has read the blocks, or that it will not."""
    RELEASED = "released"
    """Baton has freed the blocks, because no decode worker will read them."""
    EXPIRED = "expired"
    """The time of the lease ran out."""


def stats_key(how: LeaseEnd) -> str:
    """The key of leases that ended in this way, in the statistics of an engine's connector."""
    return f"leases_{how}"


def ended_leases(stats: Mapping[str, Any]) -> list[tuple[LeaseId, LeaseEnd]]:
    """The leases that have ended in a step, by the statistics of the engine's NIXL connector."""
    return [(LeaseId(lease), how) for how in LeaseEnd for lease in stats.get(stats_key(how), ())]


class Promise(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer that the blocks stay as they are for a while."""

    remaining_s: float
    """Seconds from the time at which the decode worker asked for the promise."""


class Refusal(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer that the blocks must not be read."""

    why: str
