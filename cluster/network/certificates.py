"""The certificate of this process, its key, and the authority of the cluster (`network.tls`): for TLS between Baton's
processes.

The files may be replaced while the process runs: a new connection uses the contents of then, and the other connections
stay. Contents that cannot be used change nothing but for one error in the log.
"""

import logging
import os
import ssl
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509 import Certificate, load_pem_x509_certificates

from cluster.config.network import TlsConfig

logger = logging.getLogger("baton.tls")

LOOK_INTERVAL_S = 5.0
"""Least time between two looks whether the files have changed, in seconds. Only new connections look. Longer keeps an
old certificate in use for longer; shorter asks the file system more often.
"""
KEY_EXCHANGE = "X25519"
"""The only key exchange: OpenSSL's own list has some that cost a listener a tenth of a second for each stranger."""
MAX_FILE_BYTES = 1 << 20
"""Most bytes of a file. More lets a wrong path take memory; fewer refuses a list of many authorities."""

_Stamp = tuple[int, int, int, int] | None
"""What shows that a file was replaced or written: device, inode, size and time of the change. None without a file."""


class Contexts(NamedTuple):
    """OpenSSL's settings for both sides of a connection."""

    listening: ssl.SSLContext
    connecting: ssl.SSLContext
    expires_at: float
    """Unix time at which the certificate ends that both sides show."""


class Certificates:
    """The contents of the files, as they were when they could last be used."""

    def __init__(self, files: TlsConfig, clock: Callable[[], float] = monotonic) -> None:
        """Raises ValueError with the name of the key if a file cannot be used."""
        self._files: Mapping[str, str] = msgspec.structs.asdict(files)
        self._clock = clock
        self._stamps = self._found()
        self._contexts = _loaded(self._files)
        self._looked_at = clock()
        self._complaint = ""
        """The error that was logged last. Empty if the files of then have been used since."""

    def contexts(self) -> Contexts:
        """The contexts for a new connection."""
        now = self._clock()
        if now - self._looked_at >= LOOK_INTERVAL_S:
            self._looked_at = now
            self._look()
        return self._contexts

    def _look(self) -> None:
        stamps = self._found()
        if stamps == self._stamps:
            return
        try:
            self._contexts = _loaded(self._files)
        except ValueError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                logger.error("the changed files of network.tls are not used, and the old contents are: %s", error)
        else:
            self._stamps, self._complaint = stamps, ""
            logger.info("new connections use the changed files of network.tls")

    def _found(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._files.values()]


_own: list[Certificates] = []
"""The certificates of this process, if its connections are encrypted."""


def use_certificates(files: TlsConfig | None) -> None:
    """Encrypt all later connections of this process, or none of them. Raises ValueError with the name of the key if a
    file cannot be used.
    """
    _own[:] = [] if files is None else [Certificates(files)]


def own_certificates() -> Certificates | None:
    """None if the connections of this process are in clear."""
    return _own[0] if _own else None


def _stamp(path: str) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _loaded(files: Mapping[str, str]) -> Contexts:
    """Raises ValueError with the name of the key."""
    own, key = _certificates("certificate", files)[0], _private_key(files)
    _certificates("authority", files)
    _check_dates(own, files)
    if _public(own) != _public(key):
        raise ValueError(f"network.tls.key: {files['key']} is not the key of the certificate in {files['certificate']}")
    try:
        contexts = Contexts(
            _context(ssl.PROTOCOL_TLS_SERVER, files),
            _context(ssl.PROTOCOL_TLS_CLIENT, files),
            own.not_valid_after_utc.timestamp(),
        )
        _try(contexts)
    except ssl.SSLCertVerificationError as error:
        raise ValueError(
            f"network.tls.certificate: {files['certificate']} is not accepted by the authority in "
            f"{files['authority']}: {error.verify_message}"
        ) from error
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ValueError(f"network.tls: OpenSSL does not take the files: {error}") from error
    return contexts


def _context(protocol: int, files: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # nodes come and go by address: the authority's signature makes a member
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the authority may be an intermediate one
    context.set_ecdh_curve(KEY_EXCHANGE)
    context.load_verify_locations(files["authority"])
    context.load_cert_chain(files["certificate"], files["key"], lambda: "")
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # each connection is checked against the files of its time, and none is resumed
    return context


def _try(contexts: Contexts) -> None:
    """Connect the contexts with each other, as two processes with the same files. Raises ssl.SSLError."""
    to_listener, to_connector = ssl.MemoryBIO(), ssl.MemoryBIO()
    connector = contexts.connecting.wrap_bio(to_connector, to_listener)
    listener = contexts.listening.wrap_bio(to_listener, to_connector, server_side=True)
    for side in (connector, listener, connector, listener):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()


def _certificates(name: str, files: Mapping[str, str]) -> list[Certificate]:
    content = _content(name, files)
    try:
        return load_pem_x509_certificates(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unusable(name, files, "has no certificate in PEM that can be read", error) from error


def _private_key(files: Mapping[str, str]) -> PrivateKeyTypes:
    content = _content("key", files)
    try:
        return load_pem_private_key(content, password=None)
    except TypeError as error:
        raise _unusable("key", files, "is encrypted, and nobody can type its passphrase", error) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unusable("key", files, "has no private key in PEM that can be read", error) from error


def _public(holder: Certificate | PrivateKeyTypes) -> bytes:
    return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _check_dates(certificate: Certificate, files: Mapping[str, str]) -> None:
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise ValueError(
            f"network.tls.certificate: {files['certificate']} has expired on {certificate.not_valid_after_utc}"
        )
    if now < certificate.not_valid_before_utc:
        raise ValueError(
            f"network.tls.certificate: {files['certificate']} is not valid before "
            f"{certificate.not_valid_before_utc}: does the clock of this node run slow?"
        )


def _content(name: str, files: Mapping[str, str]) -> bytes:
    path = Path(files[name])
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:
            raise ValueError(f"network.tls.{name}: {path} is no file of at most {MAX_FILE_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"network.tls.{name}: cannot read {path}: {error.strerror}") from error


def _unusable(name: str, files: Mapping[str, str], what: str, error: Exception) -> ValueError:
    return ValueError(f"network.tls.{name}: {files[name]} {what} ({error})")
