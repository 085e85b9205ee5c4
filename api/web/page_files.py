"""The files of the page that an ingress replica serves on its admin port, held in memory."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
BELOW = "/page/"
"""Where the files are, but for the index, which is at `/`."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
NEEDS_KEY = b'data-needs-key="true"'
"""In the index: whether the page asks for the admin key."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""What browsers let the page do. Its own files run and style it, and it asks its own origin alone. Text never becomes
HTML or code, whatever a script does with it (`trusted-types`).
"""
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class PageFile:
    path: str
    """The path of its URL."""
    type: str
    body: bytes
    etag: str

    @property
    def headers(self) -> dict[str, str]:
        return {**HEADERS, "content-type": self.type, "etag": self.etag}

    def is_known(self, known: str) -> bool:
        """Whether a browser has this body. `known`: the request's `If-None-Match`."""
        return any(tag.strip().removeprefix("W/") in (self.etag, "*") for tag in known.split(","))


class PageFiles:
    def __init__(self, *, needs_key: bool) -> None:
        """`needs_key`: whether the admin port asks for the admin key."""
        self.files = tuple(_read(needs_key))

    @property
    def paths(self) -> frozenset[str]:
        """The paths that browsers get without a key: what is there is in this repository, too."""
        return frozenset(file.path for file in self.files)


def _read(needs_key: bool) -> Iterator[PageFile]:
    for source in sorted(FOLDER.iterdir()):
        if source.suffix in TYPES:
            body = source.read_bytes()
            if source.name == INDEX and not needs_key:
                body = body.replace(NEEDS_KEY, NEEDS_KEY.replace(b"true", b"false"))
            path = "/" if source.name == INDEX else f"{BELOW}{source.name}"
            yield PageFile(path, TYPES[source.suffix], body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
