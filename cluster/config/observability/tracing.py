"""The config section `tracing:`."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE = re.compile(r"[\x20-\x7e]{0,4096}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_OWN_HEADERS = frozenset({"content-type", "content-length", "host", "connection", "transfer-encoding"})


class KeptTraces(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which requests are exported. It is decided when a request has ended, so that what is worth a look is not left to
    chance.
    """

    slow: bool = True
    """Requests that have missed an objective of their SLO class."""
    failed: bool = True
    refused: bool = True
    """Requests that no worker could take. Those that are refused before they are rendered have no trace."""
    verified: bool = True
    """Requests whose handoff was verified (`ingress.verified_share`)."""
    share: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Share of all other requests. A higher share costs the collector more; with a lower one there are fewer traces of
    usual requests to compare with.
    """


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The export of traces to an OpenTelemetry collector (docs/tracing.md). Without an endpoint, there is none."""

    endpoint: Annotated[str, Meta(pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?\Z", max_length=2048)] | None = None
    """Where the collector takes OTLP over HTTP, e.g. "http://127.0.0.1:4318". `/v1/traces` is added. It contains no
    credentials: `header_variables` names those.
    """
    keep: KeptTraces = KeptTraces()
    headers: dict[str, str] = {}
    """Headers of each export, without secrets: Ray's dashboard shows this config."""
    header_variables: dict[str, str] = {}
    """Headers whose values are secret, each with the name of the environment variable that contains its value, e.g.
    `authorization: COLLECTOR_AUTHORIZATION`.
    """
    resource: Annotated[dict[str, str], Meta(max_length=64)] = {}
    """Attributes of the resource beside `service.name` and `service.instance.id`, such as `deployment.environment.name:
    staging`.
    """

    def __post_init__(self) -> None:
        names = [*self.headers, *self.header_variables]
        for name in names:
            if not _HEADER.fullmatch(name) or name.lower() in _OWN_HEADERS:
                raise ValueError(f"headers: {name!r} is not the name of a header that can be set")
        if len({name.lower() for name in names}) < len(names):
            raise ValueError("headers: a header is named twice, in headers and header_variables together")
        for name, value in self.headers.items():
            if not _VALUE.fullmatch(value):
                raise ValueError(f"headers: the value of {name!r} has characters that a header cannot have")
        for name, variable in self.header_variables.items():
            if not _VARIABLE.fullmatch(variable):
                raise ValueError(f"header_variables: {variable!r} of {name!r} is not the name of a variable")
