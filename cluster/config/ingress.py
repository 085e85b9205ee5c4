"""The config section `ingress:`."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.config.node_choice import NodeChoice
from cluster.config.structured_output import StructuredOutputConfig
from cluster.config.units import Count

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]", re.IGNORECASE)
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+", re.IGNORECASE)

STORE_S = 5.0
"""Part of `ingress.drain_s` in which the turns of requests that were cut off are stored, in seconds, half of `drain_s`
at most. Shorter loses turns while PostgreSQL is slow; longer cuts requests that would have ended.
"""


class WebSocketConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The WebSocket connections of `/v1/responses` (docs/websockets.md). They count among `ingress.max_connections`."""

    idle_timeout_s: Annotated[float, Meta(gt=0, le=86400)] = 900.0
    """Time that a WebSocket stays open without a message or a response, in seconds. Then it is closed. An agent sends
    nothing while it runs its tools. A longer time keeps more unused connections; a shorter time makes agents connect
    again, and lose what their connection remembers.
    """
    lifetime_s: Annotated[float, Meta(gt=0, le=86400)] = 3600.0
    """Time after which a WebSocket takes no more messages, in seconds. The response that runs is finished. OpenAI
    limits connections to 60 minutes, which clients know. A longer time binds clients to a replica for longer; a shorter
    time makes them connect again more often.
    """
    ping_interval_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """Time between two pings, and time that a client has for its pong, in seconds. Without a pong, the connection is
    closed. If it is longer than the idle time of a proxy, the proxy closes the connection; a shorter time costs CPU for
    each idle connection.
    """
    max_remembered_bytes: Count = 4 << 20
    """Most bytes of the response with `store: false` that a connection remembers, with all that the response follows. A
    longer chain cannot be continued by `previous_response_id`. More takes memory; fewer makes clients with long
    chains send their whole input again.
    """
    max_all_remembered_bytes: Count = 256 << 20
    """Most bytes that all connections of an ingress replica remember together. The connections of one tenant may
    remember half of them. Above that, responses are not remembered. More takes memory; fewer makes clients send their
    whole input again while many connections are open.
    """


class IngressConfig(NodeChoice, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ingress replicas: where they listen, and what they accept."""

    replicas: Count = 1
    """Ingress replicas. More replicas serve more connections and tokens per second, and each takes `cpus` and the
    memory of a tokenizer.
    """
    cpus: Annotated[float, Meta(ge=0)] = 0.5
    """CPUs that Ray reserves for each replica. A reservation does not limit what the replica uses."""
    max_surge_percent: Annotated[int, Meta(ge=0, le=100)] = 100
    """Replicas that an update may start before it ends old ones, as a percentage of `replicas`. The nodes must have
    room for them (`cpus`, `resources`), or the update waits for it. With 0, each replica ends before its successor
    starts: with one replica, nobody answers meanwhile.
    """
    drain_s: Annotated[float, Meta(ge=1, le=86400)] = 60.0
    """Time that a replica has for its open requests when Serve stops it, in seconds. STORE_S before the end, the
    requests that still run are cut off, and their turns are stored as far as they got. A shorter time cuts long answers
    at each update; a longer time makes updates slow.
    """
    host: str = "127.0.0.1"
    """IPv4 address to listen on. "0.0.0.0" stands for all addresses of the node."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
    """Port to listen on. Replicas on one node share the port."""
    allowed_hosts: list[str] = []
    """Host names by which clients reach this service. Always allowed are IP addresses and names that an attacker cannot
    register: the machine's name, `localhost`, names without a dot, and names below `internal`, `local`, `svc`,
    `cluster.local`, `home.arpa` and `test`. With a loopback `host`, only `localhost` and loopback addresses are always
    allowed. "*.example.com" allows all names below example.com; "*" allows all names. A request for another host is
    refused with 421. With "*", any web page that a user of this network visits can use the service and read its answers
    (DNS rebinding).
    """
    cors_origins: list[str] = []
    """Origins of web pages that may use this service from a browser, e.g. "https://chat.example.com". "*" allows all
    origins. Requests from other origins are refused with 403. A page of a listed origin can do everything that its
    visitor could do.
    """
    max_ongoing_requests: Count = 1024
    """Most open sequences per ingress replica; a resumed stream counts as one sequence. More are refused. One request
    with n=4 and two prompts has eight sequences. A higher limit takes more memory; a lower limit refuses requests that
    workers could take.
    """
    max_sequences_per_request: Count = 128
    """Most sequences of one request: `n` times the number of its prompts. OpenAI limits `n` to 128. A higher limit lets
    one client take more of `max_ongoing_requests` at once; a lower limit refuses evaluations that send many prompts
    together.
    """
    max_background_responses: Count = 256
    """Most responses with `background: true` that an ingress replica runs at once. More are refused with 429. Each
    keeps its conversation and its output in memory, and waits up to one hour for workers. A higher limit takes more
    memory; a lower limit refuses sooner.
    """
    max_background_responses_per_tenant: Count = 64
    """Most background responses of one tenant per ingress replica. A limit as high as `max_background_responses` lets
    one tenant take all of them; a lower limit refuses a tenant's batches sooner.
    """
    max_body_bytes: Count = 32 << 20
    """Most bytes of one request body. A prompt of a million tokens has about 5 MB. A higher limit takes more memory
    (see `max_bodies_bytes`); a lower limit refuses long prompts and images.
    """
    max_bodies_bytes: Count = 512 << 20
    """Most memory for the bodies of all requests in progress of an ingress replica, in bytes: 64 bytes for each JSON
    value included, the first 64 KiB of each request excluded. Requests above the limit are refused with 503. If the
    limit is too high, the replica can run out of memory and all its streams break; if it is too low, long prompts are
    refused while other long prompts are answered.
    """
    min_body_bytes_per_s: Count = 4096
    """Least average rate of a request body, in bytes per second, measured from the end of the headers and after
    `body_grace_s`. A slower request is ended with 408. A higher rate ends uploads over bad connections; a lower rate
    lets slow senders keep their connections longer.
    """
    body_grace_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    """Time that each body has beside the time of `min_body_bytes_per_s`, in seconds. A lost packet is sent again within
    seconds. A body that is later is refused with 408. A longer time lets silent senders keep their connections longer;
    a shorter time ends uploads over bad connections.
    """
    unread_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0
    """Time that a client may read nothing of its answer once the socket's buffers are full, in seconds. Then the
    connection is reset. A longer time lets clients that do not read hold the resources of their requests; a shorter
    time resets clients whose network fails for a moment.
    """
    header_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """Time from the first byte of a request to the end of its headers, in seconds. Then the request is refused with
    408. A longer time keeps useless connections open longer; a shorter time ends requests over bad connections.
    """
    idle_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 75.0
    """Time that a connection stays open between requests, and before its first request, in seconds. Then the connection
    is closed. If it is shorter than the idle time of a load balancer (60 s is common), the load balancer sends requests
    into closing connections; a longer time keeps more unused connections.
    """
    max_header_bytes: Annotated[int, Meta(ge=1024, le=1 << 20)] = 32 << 10
    """Most bytes of a request's URL and headers together. A higher limit takes memory before the client is known; a
    lower limit refuses large tokens and cookies.
    """
    max_connections: Annotated[int, Meta(ge=8)] = 4096
    """Most open connections per ingress replica. At the limit, the connection that has been idle longest is closed for
    a new one; if none is idle, the new connection is refused with 503. A higher limit takes more file descriptors and
    memory; a limit below `max_ongoing_requests` refuses requests that could be answered.
    """
    max_connections_per_address: Count = 2048
    """Most open connections of one client address per ingress replica. A load balancer or proxy is one address for many
    users, so the default is half of `max_connections`. Without a proxy, 100 is enough for a client. A limit as high as
    `max_connections` lets one address take all connections; a lower limit refuses users behind one proxy.
    """
    websockets: WebSocketConfig = WebSocketConfig()
    max_unread_tokens: Count = 4096
    """Most tokens that a client may lag behind its stream, beyond what the network's buffers hold. Then its request is
    ended. A higher limit lets slow clients keep their decode slots longer; a lower limit ends streams that pause for a
    moment.
    """
    tool_call_parser: str | None = None
    """vLLM's parser for the tool calls of this model, e.g. "hermes". Without one, the model cannot choose to call
    `tools`.
    """
    reasoning_parser: str | None = None
    """vLLM's parser for the reasoning of this model, e.g. "qwen3"."""
    chat_template: str | None = None
    """Path of a chat template that replaces the model's own template."""
    structured_output: StructuredOutputConfig = StructuredOutputConfig()
    docs: bool = True
    """Whether GET /docs and GET /openapi.json describe the public port, to anybody and without a credential. They tell
    routes and fields, which are the same in each service, and nothing of this one. With false, they are 404.
    """
    allow_path_header: bool = False
    """Whether a request may choose its path by the header `x-baton-path: D` or `P->D`, for debugging and tests."""
    first_token_timeout_s: Annotated[float, Meta(gt=0, le=86400)] = 600.0
    """Time from the start of a request to its first token, over all attempts, in seconds. Then the request is refused
    with 503 and Retry-After. It must be longer than the prefill of the longest prompt. A longer time keeps clients
    waiting when the cluster cannot serve them; a shorter time refuses requests that a full cluster would still serve.
    """
    verified_share: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Share of handoffs that are verified before their first token is released: the decode engine's most likely first
    tokens are compared with the prefill engine's. A higher share finds wrong KV blocks sooner; a lower share delays
    fewer first tokens.
    """
    keep_receipts: Annotated[int, Meta(ge=0, le=100_000)] = 2000
    """Number of route receipts that each replica keeps for GET /baton/receipts and `baton trace`, of its latest
    requests. A receipt has 1 to 3 kB, so 2000 take about 5 MB, and contains no text of the request or its answer. A
    receipt is kept for one hour at most, and all of them take 32 MiB at most. More receipts take more memory; fewer
    forget requests sooner.
    """
    metrics_max_age_s: Annotated[float, Meta(ge=0, le=60)] = 1.0
    """Most age of an answer of GET /metrics and of GET /baton/cells, links and queue that a replica gives again, in
    seconds. A new page of metrics asks all replicas of the application. New links, or a new queue, keep the Scheduler
    from placing requests for milliseconds. A shorter time lets frequent questions cost more; a longer time shows older
    figures.
    """
    keep_alive_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """Silence of an event stream after which an SSE comment is sent, in seconds, also during a long prefill. If it is
    longer than the idle time of a proxy, the proxy closes the stream; a shorter time sends status 200 before a slow
    request can still fail with another status.
    """

    @property
    def patience_s(self) -> float:
        """Time that open requests have when Serve stops the replica, in seconds."""
        return max(self.drain_s - STORE_S, self.drain_s / 2)

    def __post_init__(self) -> None:
        for name in self.allowed_hosts:
            if not _HOST.fullmatch(name):
                raise ValueError(f"allowed_hosts: {name!r} is not a host name: give it without scheme, port and path")
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"cors_origins: {origin!r} is not an origin: give a scheme and a host, without a path")
        if self.max_body_bytes > self.max_bodies_bytes:
            raise ValueError("max_bodies_bytes is less than max_body_bytes: the largest body could never be read")
