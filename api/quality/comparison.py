"""Whether a worker's answer is the reference answer, token for token and by log-probabilities. Pure.

Both answers are greedy. Up to the first token that differs, both engines have read the same tokens, so their
log-probabilities can be compared step by step, with the arithmetic of verified handoffs (kvtransfer/verify.py). Equal
engines differ by rounding: by less than the tolerance, which may swap two tokens that are about equally likely. What
comes after such a swap has read other tokens, and is not compared.
"""

from enum import StrEnum
from math import isfinite

import msgspec

from cluster.messages.quality import Answer
from kvtransfer import verify


class ProbeResult(StrEnum):
    AGREES = "agrees"
    """All tokens are those of the reference, and all log-probabilities are within the tolerance."""
    NEAR = "near"
    """A token differs, and rounding explains it."""
    DIFFERS = "differs"
    FAILED = "failed"
    """The worker gave no whole answer."""
    SKIPPED = "skipped"
    """The probe did not run: requests of clients wait, or the worker has no room."""

    @property
    def is_right(self) -> bool:
        return self is ProbeResult.AGREES or self is ProbeResult.NEAR


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first step at which an answer leaves the reference."""

    prompt: str
    position: int
    """Number of the token in the answer, from 0 on."""
    expected: int | None
    """Token id of the reference. None if the reference has no such token."""
    got: int | None
    """Token id of the worker. None if the worker's answer has ended."""
    distance: float | None
    """Distance of the log-probabilities of the step, in nats. None if it is infinite."""
    is_cached: bool = False
    """Whether the prompt was asked for the second time, so that its KV blocks came from a cache."""
    beside: str | None = None
    """The other worker of path P->D."""


class Compared(msgspec.Struct, frozen=True):
    result: ProbeResult
    distances: list[float]
    """Of each step that was compared, in nats."""
    difference: Difference | None = None


def compared(prompt: str, reference: Answer, observed: Answer, tolerance: float) -> Compared:
    """`tolerance`: largest distance that counts as rounding, in nats."""
    distances: list[float] = []
    for position, (right, seen) in enumerate(zip(reference, observed, strict=False)):
        distance = verify.distance(right.top, seen.top)
        distances.append(distance)
        is_far = distance > tolerance
        if is_far or right.token_id != seen.token_id:
            difference = Difference(
                prompt=prompt,
                position=position,
                expected=right.token_id,
                got=seen.token_id,
                distance=distance if isfinite(distance) else None,
            )
            return Compared(ProbeResult.DIFFERS if is_far else ProbeResult.NEAR, distances, difference)
    if len(observed) == len(reference):
        return Compared(ProbeResult.AGREES, distances)
    position = min(len(reference), len(observed))
    difference = Difference(
        prompt=prompt,
        position=position,
        expected=reference[position].token_id if position < len(reference) else None,
        got=observed[position].token_id if position < len(observed) else None,
        distance=None,
    )
    return Compared(ProbeResult.DIFFERS, distances, difference)
