"""KVHandoff: what a decode worker needs to pull a prompt's KV blocks. The only type that knows vLLM's
`kv_transfer_params`.

A prefill engine returns the parameters with its last output and pins the blocks for a lease; a decode engine given
the same parameters pulls the blocks and notifies the owner, which frees them. A hand-over is single-use: vLLM does
not notice stale blocks. Clients never see or set any of this.
"""

from typing import Any, Self

import msgspec

from cluster.types import PromptTokenSources

PREFILL_REQUEST: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
"""`kv_transfer_params` of a prefill leg: compute the prompt, keep its blocks for a remote decode."""

_PULL_ALONE = {"max_load_tokens": 0}
"""What the hand-over does not bring is computed: vLLM would look the prompt up in the engine's tiers too, wait for the
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
    params: dict[str, Any]
    """vLLM's `kv_transfer_params`, as the prefill engine returned them."""

    @classmethod
    def from_engine(cls, params: dict[str, Any] | None) -> Self:
        """Take over what the prefill engine returned.

        Raises:
            ValueError: the engine returned none, or a required key is missing (a pull without it kills the decode
            engine).
        """
        missing = [key for key in _REQUIRED if not (params or {}).get(key)]
        if params is None or missing:
            raise ValueError(f"the prefill engine returned no usable hand-over (missing: {', '.join(missing)})")
        return cls(params=params)

    def to_engine(self) -> dict[str, Any]:
        """The `kv_transfer_params` of the decode leg. A copy: vLLM changes them in place."""
        return self.params | _PULL_ALONE

    @property
    def num_tokens(self) -> int:
        """Prompt tokens whose KV is handed over."""
        return int(self.params["remote_num_tokens"])


class PrefillResult(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's KV, pinned on a prefill worker until the hand-over is used, released or expired."""

    handoff: KVHandoff
    prompt_sources: PromptTokenSources
