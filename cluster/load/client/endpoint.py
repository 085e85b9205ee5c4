"""An OpenAI-compatible endpoint: where it is, and the bytes of a request to it. Pure."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from cluster.simulation.traffic.workload import Speaker

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?(?P<path>/[!-~]*)?"
)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PORTS = {"http": 80, "https": 443}

Message = tuple[Speaker, str]


class Api(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"

    @property
    def path(self) -> str:
        return {Api.CHAT: "/chat/completions", Api.COMPLETIONS: "/completions", Api.RESPONSES: "/responses"}[self]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go."""

    is_tls: bool
    host: str
    port: int
    base: str
    """Path of the API, such as `/v1`, without a slash at its end."""

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        """Read a URL. A URL without a path has the API at `/v1`.

        Raises:
            ValueError: it is no URL of HTTP, or has a user, a query or a fragment.
        """
        match = _URL.fullmatch(url.strip())
        path = match["path"] or "" if match else ""
        port = int(match["port"] or _PORTS[match["scheme"]]) if match else 0
        if match is None or "?" in path or "#" in path or not 0 < port < 65536:
            raise ValueError(f"{url!r} is no URL of an API: give one such as http://127.0.0.1:8000/v1")
        return cls(
            is_tls=match["scheme"] == "https",
            host=match["host"].strip("[]"),
            port=port,
            base=path.rstrip("/") or "/v1",
        )

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self._authority}{self.base}"

    @property
    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """The bytes of a POST request to a path below the API's."""
        further = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f"POST {self.base}{path} HTTP/1.1\r\nHost: {self._authority}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{further}\r\n"
        )
        return head.encode("latin-1") + body

    def get(self, path: str, headers: Mapping[str, str]) -> bytes:
        further = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"GET {self.base}{path} HTTP/1.1\r\nHost: {self._authority}\r\n{further}\r\n".encode("latin-1")


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers, if HTTP can carry them.

    Raises:
        ValueError: a name is no name of a header, or a value would end its line.
    """
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a header")
        if not value.isprintable() or not value.isascii():
            raise ValueError(f"the value of header {name} has characters that HTTP cannot carry")
    return dict(headers)


def body_of(
    api: Api,
    model: str,
    messages: Sequence[Message],
    num_output: int,
    further: Mapping[str, Any],
    *,
    is_streamed: bool = True,
) -> bytes:
    """The body of a request for an answer of `num_output` tokens at most. A field of `further` takes the place of a
    field with its name, and null removes it.
    """
    fields: dict[str, Any] = {"model": model}
    match api:
        case Api.CHAT:
            fields["messages"] = [{"role": role, "content": text} for role, text in messages]
            fields["max_tokens"] = num_output
        case Api.COMPLETIONS:
            fields["prompt"] = " ".join(text for _, text in messages)
            fields["max_tokens"] = num_output
        case Api.RESPONSES:
            fields["input"] = [{"role": role, "content": text} for role, text in messages]
            fields["max_output_tokens"] = num_output
            fields["store"] = False
    if is_streamed:
        fields["stream"] = True
        if api is not Api.RESPONSES:
            fields["stream_options"] = {"include_usage": True}
    return msgspec.json.encode({name: value for name, value in (fields | dict(further)).items() if value is not None})
