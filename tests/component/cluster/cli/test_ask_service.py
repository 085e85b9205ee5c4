"""Where commands ask a running service, and with which key."""

import argparse
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from api.identity.admin.admin_key import ADMIN_KEY_FILE
from cluster.cli.ask_service import add_service_options, ask
from cluster.config.environment import ADMIN_KEY_VARIABLE
from tests.component.app_with_fakes import ADMIN_KEY

ANSWERS = {"/number": (200, b"5")}


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADMIN_KEY_VARIABLE, raising=False)


def asked(*arguments: str) -> int | None:
    parser = argparse.ArgumentParser()
    add_service_options(parser)
    answer = ask(parser.parse_args(arguments), "/number", int)
    return None if answer is None else answer[0]


def conf(folder: Path, port: int = 1, **admin: object) -> str:
    """The path of a config of a service whose data is in `folder`."""
    args = {"model": "m", "state": {"data_dir": str(folder)}, "admin": {"port": port, **admin}}
    file = folder / "serve.yaml"
    file.write_text(yaml.safe_dump({"applications": [{"args": args}]}))
    return str(file)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_config_says_where_the_port_and_the_key_are(server: str, tmp_path: Path) -> None:
    (tmp_path / ADMIN_KEY_FILE).write_text(f"{ADMIN_KEY}\n")
    assert asked("--conf", conf(tmp_path, port_of(server))) == 5
    assert asked("--conf", conf(tmp_path), "--url", f"{server}/") == 5


def test_environment_has_the_key_of_any_service(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, ADMIN_KEY)
    assert asked("--url", server, "--conf", "/no/such/file") == 5
    assert asked("--conf", conf(tmp_path, port_of(server))) == 5


def test_without_a_key_it_is_said_where_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("--conf", conf(tmp_path)) is None
    said = capsys.readouterr().err
    assert said.startswith(f"baton: there is no admin key: set {ADMIN_KEY_VARIABLE}") and str(tmp_path) in said


def test_key_in_a_file_is_sent_to_this_machine_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ADMIN_KEY_FILE).write_text(f"{ADMIN_KEY}\n")
    assert asked("--conf", conf(tmp_path), "--url", "http://baton.example.com:8001") is None
    said = capsys.readouterr().err
    assert f"set {ADMIN_KEY_VARIABLE} to the admin key of http://baton.example.com:8001" in said


def test_key_of_another_service_is_said_to_be_one(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ADMIN_KEY_FILE).write_text(f"{ADMIN_KEY}x\n")
    assert asked("--conf", conf(tmp_path, port_of(server))) is None
    said = capsys.readouterr().err
    assert "answers 401 Unauthorized: the admin key is not that of this service" in said and ADMIN_KEY not in said


def test_config_that_is_missing_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("--conf", "/no/such/file") is None
    assert capsys.readouterr().err == "baton: [Errno 2] No such file or directory: '/no/such/file'\n"


@pytest.fixture
def forwarding(server: str) -> Iterator[tuple[str, list[str | None]]]:
    """A service that sends its callers elsewhere, and the credentials that came there."""
    seen: list[str | None] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"6")

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Forwarding(Elsewhere):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{elsewhere.server_port}/number")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere, HTTPServer(("127.0.0.1", 0), Forwarding) as http:
        threads = [threading.Thread(target=one.serve_forever) for one in (elsewhere, http)]
        for thread in threads:
            thread.start()
        yield f"http://127.0.0.1:{http.server_port}", seen
        for one in (elsewhere, http):
            one.shutdown()
        for thread in threads:
            thread.join()


def test_key_does_not_follow_a_redirect(
    forwarding: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, seen = forwarding
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, ADMIN_KEY)
    assert asked("--url", url) == 6
    assert seen == [None]


def test_without_a_required_key_none_is_sent(tmp_path: Path, forwarding: tuple[str, list[str | None]]) -> None:
    url, seen = forwarding
    (tmp_path / ADMIN_KEY_FILE).write_text(f"{ADMIN_KEY}\n")
    assert asked("--conf", conf(tmp_path, port_of(url), key_required=False)) == 6
    assert seen == [None]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 \x1b]0;x\x07\x1b[2J\r\n\r\n",
        b'HTTP/1.1 200 OK\r\n\r\n{"x": "\xff\xfe"}',
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b'HTTP/1.1 409 No\r\n\r\n{"error": {"message": "\xff"}}',
        b"HTTP/1.1 409 No\r\n\r\n" + b'{"error":' * 100_000,
        b"\x1b[2J\r\n\r\n",
    ],
    ids=range(6),
)
def test_answer_that_is_none_is_said_in_one_line(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answering() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)

    monkeypatch.setenv(ADMIN_KEY_VARIABLE, ADMIN_KEY)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answering)
        thread.start()
        assert asked("--url", f"http://127.0.0.1:{listening.getsockname()[1]}", "--conf", "/no/such/file") is None
        thread.join()
    said = capsys.readouterr().err
    assert said.startswith("baton: ") and said.endswith("\n") and said[:-1].isprintable()
