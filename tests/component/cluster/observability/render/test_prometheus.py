"""What the command says of a Prometheus that does not answer, and of what is none."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cluster.observability.panels.table import SUBJECTS
from cluster.observability.render import page
from cluster.observability.render.__main__ import main, rendered
from cluster.observability.render.prometheus import Prometheus
from cluster.observability.render.series import Series
from cluster.observability.render.window import Window, window
from tests.component.monitoring import a_free_port

JSON, HTML = "application/json", "text/html"


@contextmanager
def answering(status: int, kind: str, body: bytes) -> Iterator[str]:
    """The address of a server that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "page.html"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """The exit status."""
    monkeypatch.setattr("sys.argv", ["", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("status", "kind", "body", "said"),
    [
        (200, HTML, b"<html>", "does not answer as Prometheus does"),
        (404, HTML, b"", "404 Not Found"),
        (503, "text/plain", b"Service Unavailable", "503 Service Unavailable"),
        (200, JSON, b'{"status":"success"}', "does not answer as Prometheus does"),
        (
            422,
            JSON,
            b'{"status":"error","error":"too many\\n\\u001b[2Jsamples"}',
            "refuses a query: too many  [2Jsamples",
        ),
    ],
)
def test_nonsense_is_told_in_one_line(
    status: int,
    kind: str,
    body: bytes,
    said: str,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering(status, kind, body) as url:
        assert run(monkeypatch, "--prometheus", url, "--out", out) == 1
    told = capsys.readouterr().err
    assert said in told and url in told
    assert told.count("\n") == 1 and told.endswith("\n")
    assert not out.exists()


def test_silence_is_told_in_one_line(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--prometheus", f"http://127.0.0.1:{a_free_port()}/", "--out", out) == 1
    told = capsys.readouterr().err
    assert "no Prometheus answers at http://127.0.0.1:" in told and "refused" in told and told.count("\n") == 1


def test_file_that_cannot_be_written_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
    with answering(200, JSON, empty) as url:
        assert run(monkeypatch, "--prometheus", url, "--out", tmp_path) == 1
    assert "Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        ["--prometheus", "127.0.0.1:9090"],
        ["--prometheus", "file:///etc/passwd"],
        ["--prometheus", "http://me:secret@p:9090"],
        ["--last", "0m"],
        ["--last", "half an hour"],
        ["--until", "noon"],
    ],
    ids=" ".join,
)
def test_option_that_makes_no_sense_is_refused(option: list[str], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, *option, "--out", out) == 2


def test_each_panel_is_drawn_before_the_figures_of_the_next_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the figures of one panel are held at a time."""
    done = list[str]()

    class Asked(Prometheus):
        def series(self, query: str, window: Window) -> list[Series]:
            done.append("asked")
            return [Series({}, [(float(window.end), 1.0)])]

    def drawn(*_: object) -> str:
        done.append("drawn")
        return ""

    monkeypatch.setattr(page, "_chart", drawn)
    rendered(Asked("http://127.0.0.1:1"), window(1e9, 1800, 15))
    panels = [panel for subject in SUBJECTS for panel in subject.panels]
    assert done == ["asked", *(what for panel in panels for what in [*("asked" for _ in panel.curves), "drawn"])]
