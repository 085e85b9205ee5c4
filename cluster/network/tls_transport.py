"""TLS between the transport of a connection and the protocol that uses it.

asyncio's own TLS transport takes a task for each handshake, shows nothing of a connection before its handshake is over,
and keeps bytes of its own behind those of the socket. This one counts as a connection from its first moment on, and
waits, ends and holds back the sender exactly as the transport below does: encrypted bytes are in that transport's
buffer, and nowhere else.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cluster.network.handshake import Refused

RECORD_BYTES = 1 << 14
"""Most bytes that OpenSSL decrypts at once: one record of TLS."""
SLICE_BYTES = 1 << 16
"""Bytes that are encrypted or decrypted before what comes of them is passed on. OpenSSL's buffers keep the size that
they needed once. More takes more memory for each connection; fewer makes more system calls.
"""
MAX_HANDSHAKE_BYTES = 1 << 14
"""Most bytes that a peer may send before it is secured: its hello, and its certificates. More lets a stranger take CPU
time with a long chain of certificates; fewer refuses peers whose chain is long.
"""
MAX_HELLO_BYTES = 1 << 12
"""Most bytes of a stranger's first message, which OpenSSL takes memory for as soon as it knows the length. More lets
strangers take more memory; fewer refuses the hello of a peer with many extensions.
"""
_HANDSHAKE, _ALERT = 0x16, 0x15
"""The first byte of a record of TLS that a connection may begin with."""
_BEGINNING = 9
"""Bytes of the head of a record, and of the head of the message in it, whose last three are the message's length."""
TLS_REASONS = frozenset({"no_tls", "bad_tls", "no_certificate", "wrong_certificate", "certificate_refused"})
"""The reasons of a `Refused` that this module raises."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """The transport of the protocol above, and the protocol of the transport below."""

    def __init__(
        self,
        below: asyncio.Transport,
        above: asyncio.BaseProtocol,
        context: ssl.SSLContext,
        *,
        is_listener: bool,
        secured: Callable[[], None],
    ) -> None:
        """`secured` is called when the peer has shown an accepted certificate. Nothing may be written before. If that
        fails, the protocol above loses its connection with a `Refused`.
        """
        super().__init__()
        self._below = below
        self._above: Any = above
        self._secured: Callable[[], None] | None = secured
        """None once it was called."""
        self._is_listener = is_listener
        self._num_received = 0
        """Bytes, until the peer is secured."""
        self._held = b""
        """The first bytes from the peer, until the length of its first message is known."""
        self._has_begun = False
        """Whether OpenSSL has got these bytes."""
        self._error: Refused | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_listener)
        below.set_protocol(self)
        if not is_listener:
            self._shake_hands()

    def data_received(self, data: bytes) -> None:
        if self._secured is not None:
            data = self._admitted(data)
        view = memoryview(data)
        while view and not self._below.is_closing():
            self._take(view[:SLICE_BYTES])
            view = view[SLICE_BYTES:]

    def _take(self, data: memoryview) -> None:
        self._incoming.write(data)
        try:
            self._shake_hands()
        except ssl.SSLError as error:
            self._fail(_refused(error))
            return
        received, is_at_end, failed = self._decrypted()
        self._pass_on()
        if received:
            self._above.data_received(received)
        if failed is not None:
            self._fail(failed)
        elif is_at_end:
            self.close()

    def eof_received(self) -> bool | None:
        keeps_open: bool | None = self._above.eof_received()
        return keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        # Nothing may refer back to what refers to this: the Scheduler looks for cycles once in an hour
        above, self._above, self._secured = self._above, asyncio.BaseProtocol(), None
        error, self._error = self._error, None
        above.connection_lost(error or exc)

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view and not self._below.is_closing():
            try:
                view = view[self._tls.write(view[:SLICE_BYTES]) :]
            except ssl.SSLError as error:
                self._fail(_refused(error))
            self._pass_on()

    def close(self) -> None:
        """What was written is still sent, as by the transport below."""
        if self._below.is_closing():
            return
        if self._secured is None:
            with suppress(ssl.SSLError):  # the peer has not said goodbye yet, and need not
                self._tls.unwrap()
            self._pass_on()
        self._below.close()

    def abort(self) -> None:
        self._below.abort()

    def is_closing(self) -> bool:
        return self._below.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls if name == "ssl_object" else self._below.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._above = protocol

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def _shake_hands(self) -> None:
        """Go on with the handshake if it is not over. Raises ssl.SSLError."""
        if self._secured is None:
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._pass_on()
            return
        self._pass_on()
        secured, self._secured = self._secured, None
        secured()

    def _decrypted(self) -> tuple[bytes, bool, Refused | None]:
        """What the peer has sent, whether it has said goodbye then, and whether TLS has failed then."""
        parts: list[bytes] = []
        if self._secured is not None or self._below.is_closing():
            return b"", False, None
        try:
            while part := self._tls.read(RECORD_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            return b"".join(parts), False, None
        except ssl.SSLError as error:
            return b"".join(parts), False, _refused(error)
        return b"".join(parts), True, None

    def _admitted(self, data: bytes) -> bytes:
        """What may go to OpenSSL of the bytes that came before the peer is secured. The connection may have failed."""
        self._num_received += len(data)
        if self._num_received > MAX_HANDSHAKE_BYTES:
            self._fail(Refused("bad_tls", "the peer sends too much before it is secured"))
        if self._has_begun:
            return data
        begun = self._held + data
        if begun[0] not in (_HANDSHAKE, _ALERT):
            self._fail(Refused("no_tls", "the peer does not speak TLS: is network.tls set in both processes?"))
        elif self._is_listener and len(begun) < _BEGINNING:
            self._held = begun
            return b""
        elif self._is_listener and int.from_bytes(begun[_BEGINNING - 3 : _BEGINNING], "big") > MAX_HELLO_BYTES:
            self._fail(Refused("bad_tls", "the peer's hello is too long"))
        self._has_begun, self._held = True, b""
        return begun

    def _pass_on(self) -> None:
        if self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def _fail(self, error: Refused) -> None:
        self._error = error
        self._pass_on()  # OpenSSL tells the peer why
        self._below.abort()


def _refused(error: ssl.SSLError) -> Refused:
    """Its text has no words of the peer's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Refused("wrong_certificate", f"the peer's certificate is not accepted: {error.verify_message}")
    why = str(error.reason)
    if why == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return Refused("no_certificate", "the peer has shown no certificate")
    if "_ALERT_" in why:
        return Refused("certificate_refused", f"the peer does not accept this process's certificate, or its TLS: {why}")
    return Refused("bad_tls", f"TLS failed: {why}")
