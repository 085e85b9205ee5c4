"""The config section `admin:`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.config.ingress import IngressConfig
from cluster.config.network import is_loopback

MOST_CONNECTIONS = 256
"""Most open connections of the admin port per ingress replica. More takes file descriptors that belong to clients;
fewer refuses a Prometheus and several operators at once.
"""
MOST_CONNECTIONS_OF_ADDRESS = 32
"""Most open connections of one client address to the admin port per ingress replica. They need no key. More lets fewer
addresses keep operators out; fewer refuses operators behind one proxy.
"""
MOST_BODY_BYTES = 1 << 20
"""Most bytes of a request body on the admin port. The largest body names 100 models with 7 limits each, which is 64 KiB
with names of usual length. More takes memory for nothing; less refuses long names of models.
"""
MOST_BODIES_BYTES = 16 << 20
"""Most bytes of all request bodies on the admin port together. More takes memory for nothing; less refuses scripts that
make many changes at once.
"""
DRAIN_S = 2.0
"""Time that open requests of the admin port have when the replica ends, in seconds, of which they get the half. Longer
delays the end of the replica; shorter cuts off scrapes.
"""


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The port of operators: metrics, views of the cluster, route receipts, and the admin API (docs/tenants.md)."""

    host: str = "127.0.0.1"
    """IPv4 address to listen on. "0.0.0.0" stands for all addresses of the node. The admin key travels over this port
    as it is: let strangers not reach it, or put a proxy with TLS before it.
    """
    port: Annotated[int, Meta(ge=1, le=65535)] = 8001
    """Port to listen on. Ingress replicas on one node share the port, as they share `ingress.port`."""
    key_required: bool = True
    """Whether each request needs the admin key. False is allowed on a loopback host alone. Then every process on the
    node can read the metrics, and make tenants and API keys.
    """

    def refusal(self, ingress: IngressConfig) -> str | None:
        """Why this section does not fit to that of the ingress. None if it does."""
        if self.port == ingress.port:
            return f"port is {self.port}, as ingress.port is: choose another one for the admin port"
        if self.key_required:
            return None
        if not is_loopback(self.host):
            return (
                f"key_required is false and host is {self.host}: set key_required to true, or listen on 127.0.0.1. "
                "Without the key, everyone who reaches the port could make API keys"
            )
        if "*" in ingress.allowed_hosts:
            return (
                "key_required is false and ingress.allowed_hosts has '*': set key_required to true, or list the names. "
                "Otherwise a web page could make API keys through a browser on this machine (DNS rebinding)"
            )
        return None

    def as_listener(self, ingress: IngressConfig) -> IngressConfig:
        """What the listener and the edge of the admin port go by: the ingress's section with this address, with less
        of everything, and without pages of other origins.
        """
        return msgspec.structs.replace(
            ingress,
            host=self.host,
            port=self.port,
            cors_origins=[],
            max_connections=min(ingress.max_connections, MOST_CONNECTIONS),
            max_connections_per_address=min(ingress.max_connections_per_address, MOST_CONNECTIONS_OF_ADDRESS),
            max_body_bytes=min(ingress.max_body_bytes, MOST_BODY_BYTES),
            max_bodies_bytes=min(ingress.max_bodies_bytes, MOST_BODIES_BYTES),
            drain_s=min(ingress.drain_s, DRAIN_S),
        )
