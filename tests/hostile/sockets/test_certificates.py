"""The files of `network.tls`: wrong ones are refused at the start, and while a process runs they cost nothing but one
line of the log.
"""

import logging
import os
import ssl
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography.x509 import load_pem_x509_certificate
from cryptography.x509.oid import ExtendedKeyUsageOID

from cluster.config.application import parse
from cluster.config.network import TlsConfig
from cluster.messages.ids import Address
from cluster.metrics.page import render, scrape
from cluster.network.certificates import LOOK_INTERVAL_S, MAX_FILE_BYTES, Certificates, use_certificates
from cluster.rpc.connection import Connection, ConnectionLost, Service
from cluster.rpc.listener import Listener, connect
from cluster.serve_context import join_cluster
from tests.certificates import DAY, Authority
from tests.hostile.sockets.strangers import ECHO, Echo

AUTHORITY, OTHER = Authority(), Authority("other")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[TlsConfig]:
    yield AUTHORITY.issued(tmp_path / "node")
    use_certificates(None)


def test_metric_has_the_end_of_the_certificate_in_use(files: TlsConfig, tmp_path: Path) -> None:
    use_certificates(files)
    (ends,) = [line for line in _page() if line.startswith("baton_certificate_expires_seconds{")]
    expected = load_pem_x509_certificate(Path(files.certificate).read_bytes()).not_valid_after_utc.timestamp()
    assert float(ends.split()[-1]) == expected
    clock = Clock()
    certificates = Certificates(files, clock)
    AUTHORITY.issued(tmp_path / "node", age=-DAY / 2)
    assert certificates.contexts().expires_at == expected
    clock.look()
    assert certificates.contexts().expires_at > expected


def test_process_without_tls_has_no_such_metric() -> None:
    use_certificates(None)
    assert not [line for line in _page() if "baton_certificate_expires_seconds" in line]


def _page() -> list[str]:
    return render([scrape("ingress", "a")]).decode().splitlines()


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def look(self) -> None:
        self.now += LOOK_INTERVAL_S


@pytest.mark.parametrize(
    ("tls", "path"),
    [
        ({"certificate": "/a", "key": "/b"}, "missing required field `authority`"),
        ({"certificate": "/a", "key": "/b", "authority": "/c", "ciphers": "x"}, "unknown field `ciphers`"),
        ({"certificate": "/a", "key": "tls/b", "authority": "/c"}, "key: 'tls/b' is not an absolute path"),
    ],
)
def test_section_that_is_not_whole_is_refused_with_the_name_of_the_key(tls: dict[str, str], path: str) -> None:
    with pytest.raises(ValueError, match=path) as refused:
        parse({"model": "org/model", "network": {"tls": tls}})
    assert "network.tls" in str(refused.value)


def test_processes_get_the_section_with_the_host_on_which_they_listen() -> None:
    tls = {"certificate": "/a", "key": "/b", "authority": "/c"}
    network = parse({"model": "org/model", "network": {"tls": tls}}).internal_network
    assert (network.host, network.tls) == ("127.0.0.1", TlsConfig(**tls))
    assert parse({"model": "org/model"}).internal_network.tls is None


def without(name: str) -> Callable[[TlsConfig], object]:
    return lambda files: os.remove(getattr(files, name))


def with_content(name: str, content: bytes) -> Callable[[TlsConfig], object]:
    return lambda files: Path(getattr(files, name)).write_bytes(content)


def of(age: timedelta) -> Callable[[TlsConfig], object]:
    return lambda files: AUTHORITY.issued(Path(files.key).parent, age=age)


def a_fifo(files: TlsConfig) -> None:
    os.remove(files.key)
    os.mkfifo(files.key)


def half_of_the_certificate(files: TlsConfig) -> None:
    certificate = Path(files.certificate)
    certificate.write_bytes(certificate.read_bytes()[:200])


def another_key(files: TlsConfig) -> None:
    key = Path(files.key).parent / "another"
    os.replace(AUTHORITY.issued(key).key, files.key)


def for_servers_only(files: TlsConfig) -> None:
    AUTHORITY.issued(Path(files.key).parent, uses=(ExtendedKeyUsageOID.SERVER_AUTH,))


def for_clients_only(files: TlsConfig) -> None:
    AUTHORITY.issued(Path(files.key).parent, uses=(ExtendedKeyUsageOID.CLIENT_AUTH,))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (without("certificate"), r"network\.tls\.certificate: cannot read .*node\.crt: No such file"),
        (without("key"), r"network\.tls\.key: cannot read .*node\.key: No such file"),
        (without("authority"), r"network\.tls\.authority: cannot read .*authority\.crt: No such file"),
        (with_content("certificate", b""), r"network\.tls\.certificate: .*node\.crt has no certificate"),
        (half_of_the_certificate, r"network\.tls\.certificate: .*node\.crt has no certificate"),
        (with_content("key", b"-----BEGIN"), r"network\.tls\.key: .*node\.key has no private key"),
        (with_content("authority", b"hello"), r"network\.tls\.authority: .*authority\.crt has no certificate"),
        (with_content("key", bytes(MAX_FILE_BYTES + 1)), r"network\.tls\.key: .* is no file of at most"),
        (a_fifo, r"network\.tls\.key: .* is no file of at most"),
        (
            lambda files: AUTHORITY.issued(Path(files.key).parent, passphrase=b"x"),
            r"network\.tls\.key: .* is encrypted",
        ),
        (another_key, r"network\.tls\.key: .*node\.key is not the key of the certificate in .*node\.crt"),
        (of(3 * DAY), r"network\.tls\.certificate: .*node\.crt has expired on 20"),
        (of(-3 * DAY), r"network\.tls\.certificate: .*node\.crt is not valid before 20"),
        (with_content("authority", OTHER.pem), r"network\.tls\.certificate: .*crt is not accepted by the authority in"),
        (for_servers_only, "unsuitable certificate purpose"),
        (for_clients_only, "unsuitable certificate purpose"),
    ],
)
def test_file_that_cannot_be_used_is_refused_with_the_name_of_its_key(
    files: TlsConfig, spoil: Callable[[TlsConfig], object], why: str
) -> None:
    spoil(files)
    with pytest.raises(ValueError, match=why) as refused:
        join_cluster(files)
    assert str(refused.value).startswith("network.tls.")
    assert str(refused.value).count("network.tls") == 1


def test_folder_instead_of_a_file_and_one_that_may_not_be_read_are_refused(
    files: TlsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"network\.tls\.key: .* is no file"):
        Certificates(msgspec.structs.replace(files, key=str(Path(files.key).parent)))

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything
    with pytest.raises(ValueError, match=r"network\.tls\.certificate: cannot read .*node\.crt: Permission denied"):
        Certificates(files)


def test_certificate_of_an_authority_between_is_accepted_with_its_chain_and_by_the_one_between(tmp_path: Path) -> None:
    between = Authority("between", above=AUTHORITY)
    chained = between.issued(tmp_path / "chained", chain=between.pem)
    Certificates(chained)  # the authority of the file is the one between
    Path(chained.authority).write_bytes(AUTHORITY.pem)
    Certificates(chained)
    alone = between.issued(tmp_path / "alone")
    Path(alone.authority).write_bytes(AUTHORITY.pem)
    with pytest.raises(ValueError, match="unable to get local issuer certificate"):
        Certificates(alone)


def test_contexts_speak_nothing_older_than_tls_1_3_and_want_a_certificate(files: TlsConfig) -> None:
    contexts = Certificates(files).contexts()
    for context in (contexts.listening, contexts.connecting):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.verify_mode is ssl.CERT_REQUIRED


def test_files_are_looked_at_when_a_connection_needs_them_and_at_most_once_in_a_while(
    files: TlsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    certificates = Certificates(files, clock)
    first, asked = certificates.contexts(), list[str]()
    really = os.stat

    def counting(path: str) -> os.stat_result:
        asked.append(path)
        return really(path)

    monkeypatch.setattr("cluster.network.certificates.os.stat", counting)
    for _ in range(1000):
        assert certificates.contexts() is first
    assert asked == []
    clock.look()
    for _ in range(1000):
        assert certificates.contexts() is first
    assert asked == [files.certificate, files.key, files.authority]


@pytest.mark.parametrize("in_place", [True, False])
def test_replaced_files_are_used_from_the_next_look_on(files: TlsConfig, tmp_path: Path, in_place: bool) -> None:
    clock = Clock()
    certificates = Certificates(files, clock)
    first = certificates.contexts()
    if in_place:
        AUTHORITY.issued(tmp_path / "node")
    else:  # as Kubernetes does with a link
        fresh = AUTHORITY.issued(tmp_path / "fresh")
        os.replace(fresh.certificate, files.certificate)
        os.replace(fresh.key, files.key)
    assert certificates.contexts() is first
    clock.look()
    second = certificates.contexts()
    assert second is not first
    clock.look()
    assert certificates.contexts() is second


def test_half_replaced_files_change_nothing_but_one_line_of_the_log(
    files: TlsConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "baton.tls")
    clock = Clock()
    certificates = Certificates(files, clock)
    first, fresh = certificates.contexts(), AUTHORITY.issued(tmp_path / "fresh")
    os.replace(fresh.certificate, files.certificate)
    for _ in range(100):
        clock.look()
        assert certificates.contexts() is first
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "network.tls.key" in caplog.text
    os.replace(fresh.key, files.key)
    clock.look()
    assert certificates.contexts() is not first
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_each_new_fault_is_logged_and_files_that_come_back_are_no_change(
    files: TlsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    certificates = Certificates(files, clock)
    first = certificates.contexts()
    os.rename(files.key, f"{files.key}.away")
    for _ in range(3):
        clock.look()
        assert certificates.contexts() is first
    Path(files.key).write_bytes(b"half of")
    for _ in range(3):
        clock.look()
        assert certificates.contexts() is first
    os.rename(f"{files.key}.away", files.key)
    clock.look()
    assert certificates.contexts() is first
    assert [record.message.partition("are: ")[2].partition(" /")[0] for record in caplog.records] == [
        "network.tls.key: cannot read",
        "network.tls.key:",
    ]


def shown_by(connection: Connection) -> bytes:
    """The certificate of the peer."""
    transport = connection._transport
    assert transport is not None
    return bytes(transport.get_extra_info("ssl_object").getpeercert(True))


async def asked(address: Address) -> bytes:
    """The certificate that the listener shows to a new connection on which it answers."""
    connection = await connect(address, Service())
    assert await connection.call(ECHO, b"hello") == b"hello"
    shown = shown_by(connection)
    connection.close()
    return shown


async def test_new_connections_use_the_new_files_and_running_ones_stay(
    files: TlsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.network.certificates.LOOK_INTERVAL_S", 0.0)
    use_certificates(files)
    listener = await Listener.start("127.0.0.1", Echo())
    running = await connect(listener.address, Service())
    before = shown_by(running)
    assert await asked(listener.address) == before
    AUTHORITY.issued(tmp_path / "node")
    assert await asked(listener.address) != before
    assert await running.call(ECHO, b"still there?") == b"still there?"
    with_content("key", b"half of")(files)
    assert await asked(listener.address) not in (before, b"")
    running.close()
    await listener.close()


async def test_authority_is_changed_in_three_steps_without_a_moment_in_which_nodes_refuse_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/network.md has the steps. Each is done at one node first, while the other one has not done it yet."""
    monkeypatch.setattr("cluster.network.certificates.LOOK_INTERVAL_S", 0.0)
    nodes = [AUTHORITY.issued(tmp_path / name) for name in ("one", "two")]
    listeners = list[Listener]()
    for files in nodes:
        use_certificates(files)
        listeners.append(await Listener.start("127.0.0.1", Echo()))

    async def reach_each_other() -> None:
        for files, listener in zip(nodes, reversed(listeners), strict=True):
            use_certificates(files)
            await asked(listener.address)

    def signed_by_the_other(files: TlsConfig) -> None:
        OTHER.issued(Path(files.key).parent)
        Path(files.authority).write_bytes(AUTHORITY.pem + OTHER.pem)

    for step in (
        with_content("authority", AUTHORITY.pem + OTHER.pem),
        signed_by_the_other,
        with_content("authority", OTHER.pem),
    ):
        for files in nodes:
            step(files)
            await reach_each_other()
    use_certificates(AUTHORITY.issued(tmp_path / "forgotten"))
    with pytest.raises(ConnectionLost, match="certificate is not accepted"):
        await asked(listeners[0].address)
    use_certificates(None)
    for listener in listeners:
        await listener.close()
