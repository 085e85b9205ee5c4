"""The handshake by which both sides of a new connection prove that they know the secret of the application. It takes
bytes and gives bytes. Pure.

The listener greets with its process id and a nonce. The connecting side answers with its own nonce and an HMAC over
both nonces. The listener returns an HMAC over the same with another label. The key is the secret, which is never sent.
All messages have fixed lengths and are not parsed, so the bytes of a stranger reach no decoder.

    listener -> connecting side: MAGIC, version, process id, nonce
    connecting side -> listener: MAGIC, version, nonce, proof
    listener -> connecting side: proof

A proof is valid for one connection only, because each side has chosen one of the nonces. It is not valid in the
opposite direction, because the labels differ. It is not valid at another listener, because it covers the process id.
"""

import hashlib
import hmac

MAGIC = b"BATON"
VERSION = 3
"""Version of the handshake and of all messages after it. Processes of different versions refuse each other."""

PROCESS_BYTES, NONCE_BYTES, PROOF_BYTES = 16, 32, 32
"""Lengths of a process id, a nonce and a proof, in bytes."""
_TLS_HANDSHAKE = b"\x16"
"""The first byte of a connection with TLS."""
_HEAD = MAGIC + bytes([VERSION])
GREETING_BYTES = len(_HEAD) + PROCESS_BYTES + NONCE_BYTES
ANSWER_BYTES = len(_HEAD) + NONCE_BYTES + PROOF_BYTES


class Refused(Exception):
    """The peer does not belong to this cluster. `reason` is one of a few words, for counting."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ListenerHandshake:
    """The side that listens."""

    def __init__(self, secret: bytes, process: str, nonce: bytes) -> None:
        """`process` is the id of this process, in hexadecimal. `nonce` is random and new for each connection."""
        self._secret = secret
        self._process = bytes.fromhex(process)
        self._nonce = nonce
        self._received = b""

    def greeting(self) -> bytes:
        return _HEAD + self._process + self._nonce

    def take(self, data: bytes) -> bytes | None:
        """Take received bytes. Returns this side's proof when the peer has proved itself, and None while bytes are
        missing.

        Raises Refused.
        """
        self._received += data
        _check_head(self._received)
        if len(self._received) > ANSWER_BYTES:
            raise Refused("not_the_protocol", "the peer sent more than an answer to the greeting")
        if len(self._received) < ANSWER_BYTES:
            return None
        nonce, proof = _split(self._received[len(_HEAD) :], NONCE_BYTES)
        if not hmac.compare_digest(proof, self._proof(b"connector", nonce)):
            raise Refused("wrong_proof", "the peer does not know the secret of this application")
        return self._proof(b"listener", nonce)

    def _proof(self, role: bytes, nonce: bytes) -> bytes:
        return _proof(self._secret, role, self._process, self._nonce + nonce)


class ConnectorHandshake:
    """The side that connects."""

    def __init__(self, secret: bytes, process: str, nonce: bytes) -> None:
        """`process` is the id of the process that must be listening. `nonce` is random and new for each connection."""
        self._secret = secret
        self._process = bytes.fromhex(process)
        self._nonce = nonce
        self._received = b""
        self._nonces: bytes | None = None
        """The listener's nonce and this side's nonce. None until the greeting was received."""
        self.rest: bytes | None = None
        """The bytes after the listener's proof. None until the listener has proved itself."""

    def take(self, data: bytes) -> bytes:
        """Take received bytes. Returns the bytes to send, which may be empty. Raises Refused."""
        self._received += data
        answer = b""
        if self._nonces is None:
            _check_head(self._received)
            if len(self._received) < GREETING_BYTES:
                return b""
            answer = self._answer(self._received[:GREETING_BYTES])
            self._received = self._received[GREETING_BYTES:]
        self._check_proof()
        return answer

    def _answer(self, greeting: bytes) -> bytes:
        process, nonce = _split(greeting[len(_HEAD) :], PROCESS_BYTES)
        if process != self._process:
            raise Refused("other_process", "another process listens on this address now")
        self._nonces = nonce + self._nonce
        return _HEAD + self._nonce + _proof(self._secret, b"connector", self._process, self._nonces)

    def _check_proof(self) -> None:
        if self._nonces is None or len(self._received) < PROOF_BYTES:
            return
        proof, rest = _split(self._received, PROOF_BYTES)
        if not hmac.compare_digest(proof, _proof(self._secret, b"listener", self._process, self._nonces)):
            raise Refused("wrong_proof", "the listener does not know the secret of this application")
        self.rest = rest


def _check_head(received: bytes) -> None:
    """Raises Refused at the first byte that is wrong."""
    if received[:1] == _TLS_HANDSHAKE:
        raise Refused("speaks_tls", "the peer speaks TLS: is network.tls set in its process, and not in this one?")
    if received[: len(MAGIC)] != MAGIC[: len(received)]:
        raise Refused("not_the_protocol", "the peer does not speak Baton's protocol")
    if len(received) > len(MAGIC) and received[len(MAGIC)] != VERSION:
        raise Refused(
            "other_version",
            f"the peer speaks version {received[len(MAGIC)]} of the protocol, this process version {VERSION}",
        )


def _proof(secret: bytes, role: bytes, process: bytes, nonces: bytes) -> bytes:
    label = b"baton channel " + bytes([VERSION]) + b" " + role + b"\0"
    return hmac.digest(secret, label + process + nonces, hashlib.sha256)


def _split(data: bytes, at: int) -> tuple[bytes, bytes]:
    return data[:at], data[at:]
