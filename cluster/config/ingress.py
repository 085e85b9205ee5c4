"""The section `ingress:`."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.config.structured_output import StructuredOutputConfig
from cluster.config.units import Count

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]", re.IGNORECASE)
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+", re.IGNORECASE)


class IngressConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    replicas: Count = 1
    cpus: Annotated[float, Meta(ge=0)] = 0.5
    host: str = "127.0.0.1"
    """IPv4 address to listen on; "0.0.0.0" for all of the node's."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
    """The same for all replicas: those on one node share it."""
    allowed_hosts: list[str] = []
    """Names by which clients reach this service, beside IP addresses and names that strangers cannot register: this
    machine's, `localhost`, those without a dot, and those below `internal`, `local`, `svc`, `cluster.local`,
    `home.arpa` and `test`. With a loopback `host` only `localhost` and loopback addresses go without. "*.example.com"
    stands for all names below, "*" for all. A name that is missing is refused with 421. With "*" any web page that a
    user of this network visits can use the service and read its answers (DNS rebinding).
    """
    cors_origins: list[str] = []
    """Origins of the web pages that may use this service from a browser, e.g. "https://chat.example.com"; "*" for all.
    Others are refused with 403. Each one that is listed can do what its visitors could.
    """
    max_ongoing_requests: Count = 1024
    """Sequences that requests of an ingress replica may have open, and streams that are read again; it refuses more.
    One request with n=4 and two prompts has eight. More needs more memory; fewer refuses what workers could take.
    """
    max_sequences_per_request: Count = 128
    """Of one request: `n` of each of its prompts. OpenAI's limit on `n` is 128. More lets one client take more of
    `max_ongoing_requests` at once; fewer refuses evaluations that send many prompts together.
    """
    max_background_responses: Count = 256
    """Responses with `background: true` that an ingress replica runs at once; it refuses more with 429. Each keeps its
    conversation and what it has said in memory, and waits for workers for an hour.
    """
    max_background_responses_per_tenant: Count = 64
    """Of one tenant. As many as above let one tenant take all of them."""
    max_body_bytes: Count = 32 << 20
    """Of a request. A prompt of a million tokens has about 5 MB. More costs memory: see `max_bodies_bytes`."""
    max_bodies_bytes: Count = 512 << 20
    """Of all requests in progress together, beyond 64 KiB for each, with 64 for each JSON value: what they take in the
    memory of an ingress replica. Requests over it are refused with 503. Too much is an out-of-memory kill of the
    replica and its streams; too little refuses long prompts while others of them are answered.
    """
    min_body_bytes_per_s: Count = 4096
    """A request whose body comes more slowly, on average since its headers and beside `body_grace_s`, is ended with a
    408. More ends uploads over bad connections; less lets senders that hardly send keep their connections longer.
    """
    body_grace_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    """What a body has beside the time that its bytes may take: a lost packet is sent again within seconds. Longer lets
    silent senders keep their connections longer, shorter ends uploads over bad connections.
    """
    unread_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0
    """A connection whose client reads nothing of its answer for so long is reset. Longer lets clients that do not read
    keep what their requests hold; shorter resets those whose network is gone for a while.
    """
    header_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """From the first byte of a request to the end of its headers. Longer lets connections that send nothing useful live
    longer; shorter ends requests over bad connections.
    """
    idle_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 75.0
    """How long a connection stays open between requests, and before its first. Shorter than that of a load balancer
    (60 s is common) makes it send into closing connections; longer keeps more connections that nobody uses.
    """
    max_header_bytes: Annotated[int, Meta(ge=1024, le=1 << 20)] = 32 << 10
    """Of a request: its URL and headers. More costs memory before anything is known of the client; less refuses large
    tokens and cookies.
    """
    max_connections: Annotated[int, Meta(ge=8)] = 4096
    """Open connections per ingress replica. At the limit the one that has been idle longest is closed for a new one;
    where none is idle, the new one is refused with 503. More needs more file descriptors and memory; fewer than
    `max_ongoing_requests` refuses requests that could be answered.
    """
    max_connections_per_address: Count = 2048
    """Of one client address. A load balancer or proxy is one address for many users, so the default is half of all.
    Without one, 100 is plenty for a client. As many as `max_connections` let one address take all of them.
    """
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
    """Share of the handoffs that are checked before their first token is released: the decode engine's most likely
    first tokens against the prefill engine's. More finds wrong KV blocks sooner and delays more first tokens.
    """
    keep_receipts: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Route receipts that each replica keeps for GET /baton/receipts: of the last requests, where they ran, what was
    predicted and how it came out. They say nothing of what was asked. A few kB each.
    """
    metrics_max_age_s: Annotated[float, Meta(ge=0, le=60)] = 1.0
    """For how long a replica gives the same page at GET /metrics again. A page asks all replicas of the application:
    shorter lets whoever may read it cost them more, longer shows older figures.
    """
    keep_alive_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """A stream that has been silent for so long, in a long prefill too, sends an SSE comment. Longer than the idle
    timeout of a proxy loses the connection; shorter commits to status 200 before slow requests can fail.
    """

    def __post_init__(self) -> None:
        for name in self.allowed_hosts:
            if not _HOST.fullmatch(name):
                raise ValueError(f"allowed_hosts: {name!r} is no host name: without scheme, port and path")
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"cors_origins: {origin!r} is no origin: a scheme and a host, without a path")
        if self.max_body_bytes > self.max_bodies_bytes:
            raise ValueError("max_bodies_bytes: is less than max_body_bytes: the largest body could never be read")
