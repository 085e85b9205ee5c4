"""Leases, as both sides of a handoff speak of them: what a prefill worker promises, and how a lease may end.

A lease is the promise of a prefill worker to keep the KV blocks of a prompt that it has computed. It is *offered* to
whoever asked for the prefill, and *redeemed* once, by the decode worker that will pull the blocks. A redeemed lease is
a promise of a few seconds, which its holder extends while it waits for its pull. The table of the leases is in
prefill/leases.py.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NewType

import msgspec

LeaseId = NewType("LeaseId", str)
"""The prefill engine's own id of the request, which it never uses twice."""
PROMISE_S = 4.0
"""How long each promise runs. Longer keeps the blocks of a dead decode worker longer; shorter breaks the promises of a
decode worker that is slow to extend them, and makes it compute the prompt itself.
"""


def engine_lease_s(offer_s: float) -> float:
    """vLLM's own lease, at the end of which the engine frees the blocks whatever was promised: ours end first."""
    return offer_s + 2 * PROMISE_S


class LeaseEnd(StrEnum):
    """How a lease ended."""

    READ = "read"
    """The decode engine said that it has read the blocks, or that it will not."""
    RELEASED = "released"
    """Nobody wants the blocks any more: freed by the reaper."""
    EXPIRED = "expired"
    """Its time ran out without a word."""


def stats_key(how: LeaseEnd) -> str:
    """Under which an engine's connector statistics list the leases that have ended so."""
    return f"leases_{how}"


def ended_leases(stats: Mapping[str, Any]) -> list[tuple[LeaseId, LeaseEnd]]:
    """The leases that an engine has ended in a step, from its NIXL connector's statistics."""
    return [(LeaseId(lease), how) for how in LeaseEnd for lease in stats.get(stats_key(how), ())]


class Promise(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The blocks stay as they are."""

    remaining_s: float
    """From the moment at which the promise was asked for, seen by whoever asked."""


class Refusal(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The blocks must not be read."""

    why: str
