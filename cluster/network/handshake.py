"""How the two sides of a new connection prove that they belong to one cluster. Pure: bytes in, bytes out.

The listener greets with its process id and a nonce. The connector answers with a nonce of its own and an HMAC over both
nonces, and the listener returns an HMAC over the same with another label. The key is the secret of the application,
which is never sent. The messages have fixed lengths and nothing in them is parsed, so that a stranger's bytes reach no
decoder.

    listener -> connector: MAGIC, version, process id, nonce
    connector -> listener: MAGIC, version, nonce, proof
    listener -> connector: proof

A proof is of use for one connection only, because each side has chosen one of the nonces. It is of no use in the other
direction, because the labels differ, nor at another listener, because it covers the process id.
"""

import hashlib
import hmac

MAGIC = b"BATON"
VERSION = 1
"""Of the handshake and of all that is said after it: processes of different versions refuse each other."""

PROCESS_BYTES, NONCE_BYTES, PROOF_BYTES = 16, 32, 32
_HEAD = MAGIC + bytes([VERSION])
GREETING_BYTES = len(_HEAD) + PROCESS_BYTES + NONCE_BYTES
ANSWER_BYTES = len(_HEAD) + NONCE_BYTES + PROOF_BYTES


class Refused(Exception):
    """The other side does not belong here. `reason` is one of a few words, to be counted by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ListenerHandshake:
    """The side that was connected to."""

    def __init__(self, secret: bytes, process: str, nonce: bytes) -> None:
        """`process`: the id of this process, in hexadecimal. `nonce`: random, new for each connection."""
        self._secret = secret
        self._process = bytes.fromhex(process)
        self._nonce = nonce
        self._received = b""

    def greeting(self) -> bytes:
        return _HEAD + self._process + self._nonce

    def take(self, data: bytes) -> bytes | None:
        """Returns this side's proof once the other side has given its own, None while bytes are missing.

        Raises Refused.
        """
        self._received += data
        _check_head(self._received)
        if len(self._received) > ANSWER_BYTES:
            raise Refused("not_the_protocol", "more was sent than an answer to the greeting")
        if len(self._received) < ANSWER_BYTES:
            return None
        nonce, proof = _split(self._received[len(_HEAD) :], NONCE_BYTES)
        if not hmac.compare_digest(proof, self._proof(b"connector", nonce)):
            raise Refused("wrong_proof", "the other side does not know the secret of this application")
        return self._proof(b"listener", nonce)

    def _proof(self, role: bytes, nonce: bytes) -> bytes:
        return _proof(self._secret, role, self._process, self._nonce + nonce)


class ConnectorHandshake:
    """The side that connects."""

    def __init__(self, secret: bytes, process: str, nonce: bytes) -> None:
        """`process`: the id of the process that must be listening. `nonce`: random, new for each connection."""
        self._secret = secret
        self._process = bytes.fromhex(process)
        self._nonce = nonce
        self._received = b""
        self._nonces: bytes | None = None
        """The listener's and ours, once it has greeted."""
        self.rest: bytes | None = None
        """What followed the listener's proof. None: the listener has not proved itself yet."""

    def take(self, data: bytes) -> bytes:
        """Returns what to send, which may be nothing. Raises Refused."""
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
            raise Refused("other_process", "another process listens there now")
        self._nonces = nonce + self._nonce
        return _HEAD + self._nonce + _proof(self._secret, b"connector", self._process, self._nonces)

    def _check_proof(self) -> None:
        if self._nonces is None or len(self._received) < PROOF_BYTES:
            return
        proof, rest = _split(self._received, PROOF_BYTES)
        if not hmac.compare_digest(proof, _proof(self._secret, b"listener", self._process, self._nonces)):
            raise Refused("wrong_proof", "who listens there does not know the secret of this application")
        self.rest = rest


def _check_head(received: bytes) -> None:
    """As early as the first byte that is wrong."""
    if received[: len(MAGIC)] != MAGIC[: len(received)]:
        raise Refused("not_the_protocol", "what was sent is not Baton's protocol")
    if len(received) > len(MAGIC) and received[len(MAGIC)] != VERSION:
        raise Refused(
            "other_version", f"the other side speaks version {received[len(MAGIC)]} of the protocol, this one {VERSION}"
        )


def _proof(secret: bytes, role: bytes, process: bytes, nonces: bytes) -> bytes:
    label = b"baton channel " + bytes([VERSION]) + b" " + role + b"\0"
    return hmac.digest(secret, label + process + nonces, hashlib.sha256)


def _split(data: bytes, at: int) -> tuple[bytes, bytes]:
    return data[:at], data[at:]
