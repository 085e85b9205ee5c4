"""How messages look on a connection. A frame is its length (4 bytes, big-endian) and a MessagePack array [kind, call
id, method, body].
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Generic, TypeVar

import msgspec

from cluster.errors import ErrorMessage, ServingError, UnknownMessage

A = TypeVar("A")
R = TypeVar("R")
MAX_FRAME_BYTES = 1 << 28
"""Most bytes of one frame. A longer frame closes the connection. A higher limit lets one message take more memory; a
lower limit fails requests with long prompts.
"""
_LENGTH = struct.Struct(">I")


class Method(Generic[A, R]):
    """One message of the protocol: its name, its argument's type, and the type of a call's result."""

    def __init__(self, name: str, takes: Any, gives: Any = None) -> None:
        self.name = name
        self.decode_argument: Callable[[Any], A] = msgspec.msgpack.Decoder(takes).decode
        self.decode_result: Callable[[Any], R] = msgspec.msgpack.Decoder(gives).decode


class FrameKind(IntEnum):
    CALL = 1
    RESULT = 2
    FAILURE = 3
    CANCEL = 4
    POST = 5
    PING = 6
    PONG = 7


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    kind: FrameKind
    call_id: int
    method: str
    body: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_decode_frame = msgspec.msgpack.Decoder(Frame).decode
decode_failure = msgspec.msgpack.Decoder(ErrorMessage).decode


def decoded(method: Method[A, Any], body: msgspec.Raw) -> A:
    """Raises UnknownMessage."""
    try:
        return method.decode_argument(body)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise UnknownMessage(f"{method.name} cannot be read: {error}") from error


def encoded(kind: FrameKind, call_id: int, method: str, body: Any) -> bytes:
    """The frame of a message. Raises ServingError if the message cannot be sent."""
    try:
        message = _encode((kind, call_id, method, body))
    except (TypeError, ValueError, OverflowError) as error:
        raise ServingError(f"{method or 'an answer'} cannot be encoded: {error}") from error
    if len(message) > MAX_FRAME_BYTES:
        raise ServingError(f"a message of {len(message)} bytes is too long")
    return _LENGTH.pack(len(message)) + message


PING = encoded(FrameKind.PING, 0, "", None)
PONG = encoded(FrameKind.PONG, 0, "", None)


def encoded_failure(call: Frame, error: ServingError) -> bytes:
    try:
        return encoded(FrameKind.FAILURE, call.call_id, "", ErrorMessage.of(error))
    except ServingError:
        unspoken = ServingError(f"{call.method} failed with a {type(error).__name__} that cannot be sent")
        return encoded(FrameKind.FAILURE, call.call_id, "", ErrorMessage.of(unspoken))


def next_frame(received: bytearray) -> Frame | None:
    """Take the first frame of what was received. None if it is not complete. Raises OverflowError if it is too long,
    and a decoder's errors if it is no frame.
    """
    if len(received) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack_from(received)
    if size > MAX_FRAME_BYTES:
        raise OverflowError(f"a frame of {size} bytes")
    end = _LENGTH.size + size
    if len(received) < end:
        return None
    with memoryview(received) as view:
        frame = bytes(view[_LENGTH.size : end])
    del received[:end]
    return _decode_frame(frame)
