"""A service for commands that ask one."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.component.app_with_fakes import OPERATOR


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a service that answers as ANSWERS of the module says: a status and a body for each path. It answers
    503 to all other paths, and 401 without the admin key.
    """
    answers: dict[str, tuple[int, bytes]] = request.module.ANSWERS

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (503, b"{}"))
            if self.headers["Authorization"] != OPERATOR["authorization"]:
                status, body = 401, b"{}"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answering) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()
