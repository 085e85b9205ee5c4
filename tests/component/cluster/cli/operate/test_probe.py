"""`baton probe` as a user runs it, against a server that answers as an ingress does."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

from cluster.config.environment import ADMIN_KEY_VARIABLE
from cluster.messages.ids import Pool
from cluster.messages.views import ClusterView
from cluster.repository import REPO_ROOT
from kvtransfer.transport.link_table import table_of
from tests.component.app_with_fakes import ADMIN_KEY, a_worker


def links(*connected: str) -> bytes:
    workers = [a_worker("p0", Pool.PREFILL), a_worker("d0", Pool.DECODE, *connected)]
    return msgspec.json.encode(table_of(ClusterView(workers=workers)))


ANSWERS = {
    "/ready/baton/links": (200, links("p0")),
    "/unproved/baton/links": (200, links()),
    "/other/baton/links": (200, b"<html>"),
}


def probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cluster.cli.main import main; main()", "probe", *arguments]
    environment = os.environ | {ADMIN_KEY_VARIABLE: ADMIN_KEY}
    return subprocess.run(command, cwd=REPO_ROOT, env=environment, capture_output=True, text=True, check=False)


def test_links_are_printed_as_a_table(server: str) -> None:
    done = probe("--url", f"{server}/ready")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[:6] == ["p0", "10.0.0.1", "d0", "10.0.0.1", "2.00", "ms"]


def test_links_are_printed_as_json(server: str) -> None:
    done = probe("--url", f"{server}/ready/", "--json")
    (link,) = json.loads(done.stdout)["links"]
    assert (done.returncode, link["latency_s"], link["bytes_per_s"]) == (0, 0.002, 4e9)


def test_service_without_a_proved_link_is_a_failure(server: str) -> None:
    done = probe("--url", f"{server}/unproved")
    assert (done.returncode, "not proved" in done.stdout) == (1, True)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:1", "no service answers at http://127.0.0.1:1 ([Errno 111] Connection refused)"),
        ("{server}/starting", "answers 503 Service Unavailable"),
        ("{server}/other", "is not a Baton service: JSON is malformed"),
        ("nonsense", "is not a Baton service: unknown url type: 'nonsense/baton/links'"),
    ],
    ids=["nothing there", "error", "another service", "no url"],
)
def test_what_is_wrong_is_said_in_one_line(server: str, url: str, says: str) -> None:
    done = probe("--url", url.format(server=server))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert says in done.stderr


def test_help_says_what_is_asked_and_what_the_answer_means() -> None:
    said = " ".join(probe("--help").stdout.split())  # wherever the lines end
    for words in ("--url", "http://127.0.0.1:8001", "--conf", "--json", "Ends with 1"):
        assert words in said
