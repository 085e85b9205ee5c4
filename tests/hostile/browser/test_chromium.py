"""A real browser opens a hostile page beside a Baton on loopback. Only `make browser` runs these."""

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from cluster.config.ingress import IngressConfig
from tests.component.app_with_fakes import FakeFrontend, an_app

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

PATIENCE_S = 60.0
PAGE = """<!doctype html><meta charset="utf-8"><script>
const body = JSON.stringify({model: "m", messages: [{role: "user", content: "Hello"}]});
const json = {"content-type": "application/json"};
const told = {};
async function tried(name, url, options) {
  try {
    const answer = await fetch(url, options);
    const text = answer.type === "opaque" ? "" : await answer.text();
    told[name] = [answer.type, answer.status, text.slice(0, 200), answer.headers.get("x-request-id")];
  } catch (error) { told[name] = ["failed", String(error)]; }
}
(async () => {
  const baton = BATON;
  await tried("reads", baton + "/v1/models");
  await tried("posts a form's type", baton + "/v1/chat/completions", {method: "POST", mode: "no-cors", body});
  await tried("posts", baton + "/v1/chat/completions", {method: "POST", headers: json, body});
  told.beacon = navigator.sendBeacon(baton + "/v1/chat/completions", new Blob([body], {type: "text/plain"}));
  await fetch("/told", {method: "POST", body: JSON.stringify(told)});
})();
</script>"""


class Site:
    """An HTTP server of somebody else: one page, and what the page tells."""

    def __init__(self, baton: str) -> None:
        self._page = PAGE.replace("BATON", json.dumps(baton))
        self.told: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if head.startswith("post /told") and not self.told.done():
            self.told.set_result(json.loads(body))
        page = self._page.encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(page) + page)
        writer.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def chromium(folder: Path, url: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """All names but localhost are this machine, as an attacker's name server would have it."""
    command = shutil.which("chromium")
    assert command is not None, "`make browser` installs it"
    rules = "--host-resolver-rules=MAP * 127.0.0.1, EXCLUDE localhost"
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    process = await asyncio.create_subprocess_exec(
        command, *quiet, rules, f"--user-data-dir={folder}", *arguments, url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class Baton:
    def __init__(self, frontend: FakeFrontend, port: int) -> None:
        self.frontend = frontend
        self.port = port
        self.url = f"http://127.0.0.1:{port}"


@pytest_asyncio.fixture
async def baton(request: pytest.FixtureRequest) -> AsyncIterator[Baton]:
    """On loopback, with the configuration that the test names."""
    config: dict[str, Any] = {"allowed_hosts": [], **getattr(request, "param", {})}
    frontend, port = FakeFrontend(), free_port()
    listener = await HttpListener.start(
        an_app(frontend, **config), Gatekeeper(IngressConfig(port=port, host="127.0.0.1")), "baton"
    )
    yield Baton(frontend, port)
    await listener.close()


async def told_by(baton: Baton, folder: Path, host: str, port: int, url: str | None = None) -> dict[str, Any]:
    """What a page of this origin could do with `url`."""
    site = Site(url or baton.url)
    server = await asyncio.start_server(site.answer, "127.0.0.1", port)
    async with server, chromium(folder, f"http://{host}:{port}/"):
        return await asyncio.wait_for(site.told, PATIENCE_S)


async def test_page_of_another_site_reads_nothing_and_has_nothing_generated(baton: Baton, tmp_path: Path) -> None:
    told = await told_by(baton, tmp_path, "evil.example", free_port())
    assert told["reads"][0] == "failed"
    assert told["posts"][0] == "failed"
    assert told["posts a form's type"][0] in ("opaque", "failed")
    assert baton.frontend.bodies == []


async def test_name_that_an_attacker_has_rebound_to_this_machine_is_refused(baton: Baton, tmp_path: Path) -> None:
    url = f"http://rebound.example:{baton.port}/v1/models"
    async with chromium(tmp_path, url, "--dump-dom") as process:
        page, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert b"host_not_allowed" in page
    assert b"baton-demo" not in page


LISTED_PORT = free_port()


@pytest.mark.parametrize("baton", [{"cors_origins": [f"http://chat.example:{LISTED_PORT}"]}], indirect=True)
async def test_page_that_the_operator_has_listed_reads_and_asks(baton: Baton, tmp_path: Path) -> None:
    told = await told_by(baton, tmp_path, "chat.example", LISTED_PORT)
    kind, status, text, request_id = told["reads"]
    assert (kind, status) == ("cors", 200)
    assert "baton-demo" in text
    assert request_id
    assert told["posts"][:2] == ["cors", 200]
    assert len(baton.frontend.bodies) == 1, "the form's type and the beacon reach no model, listed or not"
