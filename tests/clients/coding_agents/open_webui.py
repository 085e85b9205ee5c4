"""Open WebUI, over chat completions: its own server, and a chat on its page in Chromium."""

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.fronts.free_ports import free_port
from tests.clients.coding_agents.environments import Environment
from tests.clients.coding_agents.scripts import script
from tests.clients.coding_agents.workplace import FlowFailed, Workplace, in_bin

ENVIRONMENT = Environment(("torch==2.13.0+cpu", "open-webui==0.12.4", "playwright==1.65.2"), is_python=True)
START_S = 900
"""Longest time until Open WebUI answers, in seconds. It makes its database first, which takes minutes on a
busy machine."""
_ANSWER = "I am here."


def chats_in_a_browser(place: Workplace) -> str:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise FlowFailed("the Debian package chromium is needed")
    with _server(place) as url:
        return place.run(
            *(in_bin(place, "python", ("bin",)), Path(__file__).with_name("browser_chat.py")),
            *(url, script(_ANSWER), _ANSWER, chromium),
        )


@contextmanager
def _server(place: Workplace) -> Iterator[str]:
    """Open WebUI before the service. Yields the URL of its page."""
    port = free_port()
    environment = place.environment(
        {
            "DATA_DIR": str(place.home),
            "OFFLINE_MODE": "true",
            "HF_HUB_OFFLINE": "1",
            "WEBUI_AUTH": "false",
            "ENABLE_OLLAMA_API": "false",
            "OPENAI_API_BASE_URL": f"{place.url}/v1",
            "OPENAI_API_KEY": place.key,
            "RAG_EMBEDDING_ENGINE": "openai",
            "RAG_OPENAI_API_BASE_URL": f"{place.url}/v1",
        }
    )
    command = [str(in_bin(place, "open-webui", ("bin",))), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with (place.home / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=place.folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(f"{url}/health", server, place.home / "server.log")
            yield url
        finally:
            server.terminate()
            server.wait(timeout=30)


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    gives_up = time.monotonic() + START_S
    while time.monotonic() < gives_up and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
        else:
            return
    raise FlowFailed(f"Open WebUI does not answer: {log.read_text()[-2000:]}")
