"""The guard as a process of its own: it hands on what it is asked to a service that serves the model, and notes what
was judged.

`python -m tests.real_cluster.guarded.guard_proxy PORT SERVICE FOLDER` listens on the port, for a service at that URL.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from tests.real_cluster.fresh_key import bearer
from tests.real_cluster.guarded.tenants import GUARD_KEY

JUDGED = "judged.jsonl"
"""File in the folder. A line has one text that the service has judged, as a JSON string."""
NONSENSE = "nonsense"
"""File in the folder. While it is there, the guard answers nonsense."""
NO_VERDICT = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Ask somebody else."}}]}'


class GuardProxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, service: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", port), _GuardCall)
        self._service = httpx.Client(base_url=service, headers=bearer(GUARD_KEY), timeout=60)
        self._folder = folder

    def answer(self, path: str, asked: bytes) -> tuple[int, bytes]:
        """The status and the body."""
        if (self._folder / NONSENSE).exists():
            return 200, NO_VERDICT
        answer = self._service.post(path, content=asked, headers={"content-type": "application/json"})
        if answer.is_success:
            self._note(json.loads(asked))
        return answer.status_code, answer.content

    def _note(self, asked: dict[str, Any]) -> None:
        """Before the verdict leaves, so that no text has passed that is not noted."""
        with (self._folder / JUDGED).open("a") as file:
            file.write(json.dumps(asked["messages"][-1]["content"]) + "\n")


class _GuardCall(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GuardProxy

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"]))
        status, answer = self.server.answer(self.path, asked)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """What is asked is no news."""


if __name__ == "__main__":
    GuardProxy(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])).serve_forever()
