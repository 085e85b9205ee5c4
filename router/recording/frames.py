"""How records are written into a file of the stimulus log, and read again. Pure.

A file is MAGIC and frames. A frame has its length, a checksum, and a list of records as MessagePack. So what was torn
off with the process or the machine, or damaged since, is found and not taken for records.
"""

from collections.abc import Sequence
from typing import Final, Protocol
from zlib import crc32

import msgspec

from cluster.unreadable import UNREADABLE
from router.recording.records import FORMAT, LogHeader, Record

MAGIC: Final = b"baton stimuli\n"
HEAD_BYTES: Final = 8
MAX_FRAME_BYTES: Final = 1 << 24
"""Length of the longest frame, in bytes. More lets a damaged length take more memory of a reader; fewer loses records
that are longer: a placement of a prompt with a million tokens has 0.7 MB.
"""

_records: Final = msgspec.msgpack.Decoder(list[Record])
_header: Final = msgspec.msgpack.Decoder(LogHeader)


class _OnlyFormat(msgspec.Struct):
    """What a header of any version has."""

    format: int


class DamagedLog(ValueError):
    """A file is no stimulus log, or is damaged."""


class TornLog(DamagedLog):
    """A file ends within a frame: the process or its machine ended while it wrote."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def frame(payload: bytes) -> bytes:
    """Raises ValueError if the payload is too long."""
    if len(payload) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(payload)} bytes, of which {MAX_FRAME_BYTES} may be written")
    return len(payload).to_bytes(4, "little") + crc32(payload).to_bytes(4, "little") + payload


def encoded(records: Sequence[Record]) -> bytes:
    """A frame. Raises ValueError if it would be too long."""
    return frame(msgspec.msgpack.encode(records))


def encoded_header(header: LogHeader) -> bytes:
    return MAGIC + frame(msgspec.msgpack.encode(header))


def read_header(file: Readable) -> LogHeader:
    """Raises DamagedLog for a file that is no stimulus log, or one of another version."""
    magic = file.read(len(MAGIC))
    if len(magic) < len(MAGIC) and MAGIC.startswith(magic):
        raise TornLog("the file ends within its header")
    if magic != MAGIC:
        raise DamagedLog("this is no stimulus log")
    payload = _payload(file)
    if payload is None:
        raise TornLog("the file ends within its header")
    try:
        known = msgspec.msgpack.decode(payload, type=_OnlyFormat)
        if known.format != FORMAT:
            raise DamagedLog(f"the log has format {known.format}, and this version of Baton reads format {FORMAT}")
        return _header.decode(payload)
    except UNREADABLE as error:
        raise DamagedLog(f"the header is damaged: {error}") from error


def read_records(file: Readable) -> list[Record] | None:
    """The records of the next frame. None at the end of the file.

    Raises:
        TornLog: The file ends within the frame.
        DamagedLog: The frame is damaged.
    """
    payload = _payload(file)
    if payload is None:
        return None
    try:
        return _records.decode(payload)
    except UNREADABLE as error:
        raise DamagedLog(f"a frame is damaged, and has something else than records: {error}") from error


def _payload(file: Readable) -> bytes | None:
    head = file.read(HEAD_BYTES)
    if not head:
        return None
    num_bytes = int.from_bytes(head[:4], "little")
    if len(head) < HEAD_BYTES:
        raise TornLog("the file ends within a frame")
    if num_bytes > MAX_FRAME_BYTES:
        raise DamagedLog(f"a frame claims to have {num_bytes} bytes, and {MAX_FRAME_BYTES} are allowed")
    payload = file.read(num_bytes)
    if len(payload) < num_bytes:
        raise TornLog("the file ends within a frame")
    if crc32(payload) != int.from_bytes(head[4:], "little"):
        raise DamagedLog("a frame does not have its checksum")
    return payload
