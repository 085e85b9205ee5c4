"""Authorities and certificates for tests, made in a moment and valid for a day."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from cluster.config.network import TlsConfig

DAY = timedelta(days=1)
BOTH_SIDES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "authority", above: "Authority | None" = None) -> None:
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = generate_private_key(SECP256R1())
        signer = above or self
        self.certificate = signer.sign(
            self._name, self._key, [(x509.BasicConstraints(ca=True, path_length=None), True)], timedelta()
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def sign(
        self,
        subject: x509.Name,
        key: EllipticCurvePrivateKey,
        extensions: list[tuple[x509.ExtensionType, bool]],
        age: timedelta,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(
            self._name, subject, key.public_key(), x509.random_serial_number(), now - age - DAY, now - age + DAY
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(self._key, SHA256())

    def issued(
        self,
        folder: Path,
        *,
        age: timedelta = timedelta(),
        uses: tuple[ObjectIdentifier, ...] = BOTH_SIDES,
        passphrase: bytes | None = None,
        chain: bytes = b"",
    ) -> TlsConfig:
        """Write a certificate of a node, its key and this authority into a folder. `age`: how long ago the certificate
        was in the middle of its two days. `chain`: what follows the certificate in its file.
        """
        folder.mkdir(exist_ok=True)
        files = TlsConfig(
            certificate=str(folder / "node.crt"), key=str(folder / "node.key"), authority=str(folder / "authority.crt")
        )
        key = generate_private_key(SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")])
        signed = self.sign(x509.Name([]), key, [(names, True), (x509.ExtendedKeyUsage(uses), False)], age)
        encryption: KeySerializationEncryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
        Path(files.certificate).write_bytes(signed.public_bytes(Encoding.PEM) + chain)
        Path(files.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        Path(files.authority).write_bytes(self.pem)
        return files
