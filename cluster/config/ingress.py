"""The section `ingress:`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.config.structured_output import StructuredOutputConfig
from cluster.config.units import Count


class IngressConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    replicas: Count = 1
    cpus: Annotated[float, Meta(ge=0)] = 0.5
    host: str = "127.0.0.1"
    """IPv4 address to listen on; "0.0.0.0" for all of the node's."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
    """The same for all replicas: those on one node share it."""
    max_ongoing_requests: Count = 1024
    """Open requests per ingress replica, and streams that are read again; it refuses more."""
    max_body_bytes: Count = 32 << 20
    """Of a request. A prompt of a million tokens has about 5 MB."""
    max_unread_tokens: Count = 4096
    """How many tokens a client may lag behind its stream, beyond what the network's buffers hold, before its request is
    ended. More lets slow clients keep their decode slots longer.
    """
    tool_call_parser: str | None = None
    """vLLM's parser for the tool calls of this model, e.g. "hermes". None: `tools` cannot be called automatically."""
    reasoning_parser: str | None = None
    """vLLM's parser for the reasoning of this model, e.g. "qwen3"."""
    chat_template: str | None = None
    """Path of a chat template that replaces the model's own."""
    structured_output: StructuredOutputConfig = StructuredOutputConfig()
    allow_path_header: bool = False
    """Let requests choose their path by the header `x-baton-path: D` or `P->D`. For debugging and tests."""
    first_token_timeout_s: Annotated[float, Meta(gt=0, le=86400)] = 600.0
    """A request that has no token by then, after all retries, is refused with Retry-After. The longest prompt must be
    computed in it.
    """
    verified_share: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Share of the hand-overs that are checked before their first token is released: the decode engine's most likely
    first tokens against the prefill engine's. More finds wrong KV blocks sooner and delays more first tokens.
    """
    keep_receipts: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Route receipts that each replica keeps for GET /baton/receipts: of the last requests, where they ran, what was
    predicted and how it came out. They say nothing of what was asked. A few kB each.
    """
    keep_alive_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """A stream that has been silent for so long, in a long prefill too, sends an SSE comment. Longer than the idle
    timeout of a proxy loses the connection; shorter commits to status 200 before slow requests can fail.
    """
