"""Clients whose answers are compared with OpenAI's document as they pass, whole or event by event."""

import json
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any, TypeVar

import httpx
import httpx2

from tests.conformance.document import EVENTS, NAMED, document
from tests.conformance.waivers import WAIVERS, Waiver

Client = TypeVar("Client", httpx.Client, httpx.AsyncClient, httpx2.Client, httpx2.AsyncClient)


class Record:
    """What has passed so far."""

    def __init__(self) -> None:
        self.deviations: list[str] = []
        self.asked: set[tuple[str, str]] = set()
        """Methods and paths."""
        self.schemas: set[str] = set()
        """Schemas that a body was compared with."""
        self.used: set[Waiver] = set()

    def take(self) -> list[str]:
        """The deviations since the last time."""
        found, self.deviations = self.deviations, []
        return found

    def compare(self, answered: str, schema: str, value: Any) -> None:
        self.schemas.add(schema)
        for deviation in document().deviations(schema, value):
            line = f"{answered}: {deviation}"
            waivers = {waiver for waiver in WAIVERS if waiver.covers(line)}
            self.used |= waivers
            if not waivers:
                self.deviations.append(line)

    def compare_event(self, answered: str, schema: str, event: Any) -> None:
        """`schema`: of all events of the stream."""
        try:
            member = document().schema_of_event(schema, event)
        except LookupError:
            self.deviations.append(f"{answered}: there is no such event: {event}")
        else:
            self.compare(answered, member, event)


RECORD = Record()
"""What passed in all tests. A test that has caused a deviation fails (tests/conftest.py)."""


def watched(client: Client, invented: Collection[str] = (), record: Record = RECORD) -> Client:
    """`invented`: paths whose answers a test has made up, but for errors."""
    document()  # without the file, the test fails here, and not within an answer

    def watch(response: Any) -> None:
        path, status = _path(response), response.status_code
        record.asked.add((response.request.method, path))
        if (path not in invented or status >= 400) and (reader := _reader(response, record)):
            response.stream = _Watched(response.stream, reader)

    async def watch_async(response: Any) -> None:
        watch(response)

    is_async = isinstance(client, httpx.AsyncClient | httpx2.AsyncClient)
    hooks: Any = client.event_hooks
    hooks["response"].append(watch_async if is_async else watch)
    client.event_hooks = hooks
    return client


def _path(response: Any) -> str:
    """As it was sent: a quoted slash does not part segments."""
    raw: bytes = response.request.url.raw_path
    return raw.partition(b"?")[0].decode()


def _reader(response: Any, record: Record) -> "_Reader | None":
    """None where there is nothing to compare."""
    asked, status = f"{response.request.method} {_path(response)}", response.status_code
    media_type = response.headers.get("content-type", "").partition(";")[0]
    answered = f"{asked} {status} {media_type}"
    try:
        schema = document().schema_of(asked, status, media_type)
    except LookupError:
        record.deviations.append(f"{answered}: there is no such answer")
        return None
    if schema is None:
        return None
    return _Events(record, answered, schema) if media_type == EVENTS else _Body(record, answered, schema)


class _Body:
    def __init__(self, record: Record, answered: str, schema: str) -> None:
        self._record, self._answered, self._schema = record, answered, schema
        self._read = bytearray()

    def take(self, piece: bytes) -> None:
        self._read += piece

    def end(self) -> None:
        self._record.compare(self._answered, self._schema, json.loads(self._read))


class _Events:
    def __init__(self, record: Record, answered: str, schema: str) -> None:
        self._record, self._answered, self._schema = record, answered, schema
        self._unread = b""

    def take(self, piece: bytes) -> None:
        *blocks, self._unread = (self._unread + piece).split(b"\n\n")
        for block in blocks:
            fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":"))
            if fields and fields["data"] != "[DONE]":
                self._compare(json.loads(fields.pop("data")), fields)

    def end(self) -> None:
        if self._unread:
            self._record.deviations.append(f"{self._answered}: the stream ends within {self._unread!r}")

    def _compare(self, event: Any, fields: dict[str, str]) -> None:
        """`fields`: beside its data."""
        record, answered = self._record, self._answered
        if fields != ({"event": event.get("type")} if self._schema in NAMED else {}):
            record.deviations.append(f"{answered}: {fields} beside {event}")
        record.compare_event(answered, self._schema, event)


_Reader = _Body | _Events


class _Watched(httpx.SyncByteStream, httpx.AsyncByteStream, httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body on its way to its reader."""

    def __init__(self, stream: Any, reader: _Reader) -> None:
        self._stream, self._reader = stream, reader

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._reader.take(piece)
            yield piece
        self._reader.end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._reader.take(piece)
            yield piece
        self._reader.end()

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()
