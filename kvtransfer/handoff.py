"""KVHandoff: what a decode worker needs to pull a prompt's KV blocks. The only type that knows vLLM's
`kv_transfer_params`.

A prefill engine returns the parameters with its last output and pins the blocks for a lease; a decode engine given
the same parameters pulls the blocks and notifies the owner, which frees them. vLLM notices neither stale nor foreign
blocks, so a handoff carries what its lease is redeemed with (kvtransfer/lease.py): the worker process that granted
it, the lease, and a digest of the prompt. Clients never see or set any of this.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from cluster.messages.generation import TokenDelta
from cluster.messages.ids import WorkerId
from kvtransfer.lease import LeaseId

PREFILL_REQUEST: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
"""`kv_transfer_params` of a prefill leg: compute the prompt, keep its blocks for a remote decode."""

PULL_DEADLINE = "baton_pull_deadline"
"""Our own key among the parameters of a decode leg: until when the pull counts, in seconds of `time.monotonic`."""
_PULL_ALONE = {"max_load_tokens": 0}
"""What the handoff does not bring is computed: vLLM would look the prompt up in the engine's tiers too, wait for the
disk before it starts the pull, and count what it loads from either as one.
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
    """The prefill worker that holds the blocks. Never reused: after a restart it is another one."""
    params: dict[str, Any]
    """vLLM's `kv_transfer_params`, as the prefill engine returned them."""

    @classmethod
    def from_engine(cls, worker: WorkerId, params: dict[str, Any] | None) -> Self:
        """Take over what the prefill engine returned.

        Raises:
            ValueError: the engine returned none, or a required key is missing (a pull without it kills the decode
            engine).
        """
        missing = [key for key in _REQUIRED if not (params or {}).get(key)]
        if params is None or missing:
            raise ValueError(f"the prefill engine returned no usable handoff (missing: {', '.join(missing)})")
        return cls(worker=worker, params=params)

    def to_engine(self, pull_deadline: float) -> dict[str, Any]:
        """The `kv_transfer_params` of the decode leg. `pull_deadline` is in seconds of `time.monotonic` here. A copy:
        vLLM changes them in place.
        """
        return {**self.params, **_PULL_ALONE, PULL_DEADLINE: pull_deadline}

    @property
    def lease(self) -> LeaseId:
        return LeaseId(self.params["remote_request_id"])

    @property
    def num_tokens(self) -> int:
        """Prompt tokens whose KV is handed over."""
        return int(self.params["remote_num_tokens"])

    def digest_of(self, prompt_token_ids: Sequence[int]) -> bytes:
        """What the lease is redeemed with, for a request whose prompt starts with the handed-over tokens."""
        return prompt_digest(prompt_token_ids[: self.num_tokens])


class PrefillResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a prefill gives."""

    handoff: KVHandoff | None
    """None where there is nothing left to decode: the request is resumable, so the first token counts, and it is the
    last one.
    """
    first: TokenDelta
    """The token that follows what the prefill engine computed; with a finish reason where no other can follow."""

    def follows(self, num_prompt: int) -> bool:
        """Whether `first` is the token after a prompt of so many tokens. Of some models vLLM's prefill side leaves the
        last prompt tokens to the decode side (hybrid ones, several MTP modules): then it follows an earlier one.
        """
        return self.handoff is None or self.handoff.num_tokens >= num_prompt


def prompt_digest(token_ids: Sequence[int]) -> bytes:
    """16 bytes. Equal for equal prompts, whatever the machine."""
    ids = array("I", token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
