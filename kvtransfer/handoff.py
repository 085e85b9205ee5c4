"""KVHandoff: what a decode worker needs to pull a prompt's KV blocks. The only type that knows vLLM's
`kv_transfer_params`. Pure.

A prefill engine returns the parameters with its last output and pins the blocks for a lease. A decode engine that gets
the same parameters pulls the blocks and notifies the prefill engine, which frees them. vLLM notices neither stale nor
foreign blocks, so a handoff carries what its lease is redeemed with (kvtransfer/lease_terms.py): the worker process
that granted the lease, the lease, and a digest of the prompt. Clients never see or set any of this.
"""

import hashlib
from array import array
from collections.abc import Sequence
from sys import byteorder
from typing import Any, Self

import msgspec

from cluster.messages.generation import TokenDelta
from cluster.messages.ids import WorkerId
from kvtransfer.lease_terms import LeaseId

PREFILL_REQUEST: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
"""`kv_transfer_params` of a prefill: compute the prompt, and keep its blocks for a remote decode."""

PULL_DEADLINE = "baton_pull_deadline"
"""Baton's own key among the parameters of a decode: the time until which the pull counts, in seconds of
`time.monotonic`.
"""
LENDER = "baton_lender"
"""Baton's own key for the prefill worker that the blocks are pulled from."""
_PULL_ALONE = {"max_load_tokens": 0}
"""Keeps vLLM from looking the prompt up in the engine's tiers, too: it would wait for the disk before it starts the
pull, and count blocks from both as one. Tokens that the handoff does not bring are computed.
"""

_REQUIRED = (
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "remote_block_ids",
    "remote_num_tokens",
)


class KVHandoff(msgspec.Struct, frozen=True, kw_only=True):
    worker: WorkerId
    """The prefill worker that holds the blocks. A restarted worker has another id."""
    params: dict[str, Any]
    """vLLM's `kv_transfer_params`, as the prefill engine returned them."""

    @classmethod
    def from_engine(cls, worker: WorkerId, params: dict[str, Any] | None) -> Self:
        """Make a handoff of the parameters that the prefill engine returned.

        Raises:
            ValueError: there are none, or a required key is missing, without which a pull would kill the decode engine.
        """
        missing = [key for key in _REQUIRED if not (params or {}).get(key)]
        if params is None or missing:
            raise ValueError(f"the prefill engine returned no usable handoff (missing: {', '.join(missing)})")
        return cls(worker=worker, params=params)

    def to_engine(self, pull_deadline: float) -> dict[str, Any]:
        """The `kv_transfer_params` of the decode, as a copy, because vLLM changes them in place. `pull_deadline` is in
        seconds of this machine's `time.monotonic`.
        """
        return {**self.params, **_PULL_ALONE, PULL_DEADLINE: pull_deadline, LENDER: self.worker}

    @property
    def lease(self) -> LeaseId:
        return LeaseId(self.params["remote_request_id"])

    @property
    def num_tokens(self) -> int:
        """Prompt tokens whose KV is handed over."""
        return int(self.params["remote_num_tokens"])

    def digest_of(self, prompt_token_ids: Sequence[int]) -> bytes:
        """The digest that redeems the lease, for a request whose prompt starts with the tokens of the handoff."""
        return prompt_digest(prompt_token_ids[: self.num_tokens])


class PulledBlocks(msgspec.Struct, frozen=True, array_like=True):
    """KV blocks that a decode worker has pulled, and all that it has computed on top of them."""

    lender: WorkerId
    """The prefill worker that they were pulled from."""
    lease: LeaseId | None = None
    """The lease that they were pulled under. None means all blocks of the lender."""


class PrefillResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a prefill."""

    handoff: KVHandoff | None
    """None if nothing is left to decode: the first token is also the last one, and the request is resumable, so that
    this token counts.
    """
    first: TokenDelta
    """The token after what the prefill engine computed. It has a finish reason if no token can follow it."""

    def follows(self, num_prompt: int) -> bool:
        """Whether `first` is the token after a prompt of `num_prompt` tokens. With hybrid models and several MTP
        modules, vLLM's prefill engine leaves the last prompt tokens to the decode engine; then `first` follows an
        earlier token.
        """
        return self.handoff is None or self.handoff.num_tokens >= num_prompt


def prompt_digest(token_ids: Sequence[int]) -> bytes:
    """16 bytes that are equal for equal prompts on all machines."""
    ids = array("I", token_ids)
    if byteorder == "big":
        ids.byteswap()
    return hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
