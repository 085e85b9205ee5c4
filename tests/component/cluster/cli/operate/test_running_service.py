"""`baton status`, `why` and `drain` as a user runs them, against a server that answers as an ingress does."""

import argparse
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import ModuleType
from typing import Any
from unicodedata import category

import msgspec
import pytest

from api.web.live_document import FORM, ClusterState, LiveDocument, cluster_lines
from api.web.recent_requests import recent_requests
from cluster.cli.operate import drain, status, top, why
from cluster.config.environment import ADMIN_KEY_VARIABLE
from cluster.messages.ids import CellName, SloClass
from cluster.messages.operations import SchedulerStatus, ServiceStatus, WorkerCondition, WorkerStatus
from cluster.messages.views import Readiness
from tests.component.app_with_fakes import ADMIN_KEY, OPERATOR
from tests.unit.statuses import a_cell_view, a_scheduler_status, a_service_status, a_worker_status

PAGE = b"""
baton_goodput_requests_total{slo_class="standard",path="D",result="good"} 9
baton_goodput_requests_total{slo_class="standard",path="D",result="ttft_missed"} 1
baton_requests_total{path="D",outcome="finished"} 10
process_resident_memory_bytes{deployment="ingress",replica="a"} 5
"""
EVIL = "\x1b]0;\nowned\x07\x9b2J\u202e"
DRAINING = a_worker_status("d1", condition=WorkerCondition.DRAINING, num_open=2, num_links=2)


class Service:
    """What the server answers, and what it was told."""

    def __init__(self) -> None:
        self.statuses: list[ServiceStatus] = [serving(DRAINING)]
        """The last one stays."""
        self.live = a_live_document()
        self.refusal: tuple[int, dict[str, Any]] | None = None
        self.posted: list[tuple[str, Any]] = []
        self.url = ""

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if body:
            self.posted.append((path, json.loads(body)))
            status, said = self.refusal or (200, {"changed": True})
            return status, json.dumps(said).encode()
        if path == "/metrics":
            return 200, PAGE
        if path == "/baton/live":
            return 200, msgspec.json.encode(self.live)
        current = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return 200, msgspec.json.encode(current)


def a_live_document(form: int = FORM) -> LiveDocument:
    known = cluster_lines([a_scheduler_status(a_worker_status("p0"), a_worker_status("d0"))], [], Readiness(1, 1, 1))
    return LiveDocument(
        form=form,
        number=1,
        replica="a",
        model="baton-demo",
        at=0.0,
        every_s=1.0,
        cluster=ClusterState(age_s=0.0, error=None, known=known),
        requests=recent_requests([], 10, 0.0),
    )


def serving(*workers: Any) -> ServiceStatus:
    return a_service_status(a_scheduler_status(a_worker_status("p0"), a_worker_status("d0", num_open=1), *workers))


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, ADMIN_KEY)
    monkeypatch.setattr(drain, "POLL_S", 0.001)
    answering = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            known = self.headers["Authorization"] == OPERATOR["authorization"]
            status, said = answering.answer(self.path, body) if known else (401, b"{}")
            self.send_response(status)
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever, args=(0.005,))
        thread.start()
        answering.url = f"http://127.0.0.1:{http.server_port}"
        yield answering
        http.shutdown()
        thread.join()


def run(command: ModuleType, service: Service, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    known = parser.parse_args([*arguments, "--url", service.url])
    return int(known.run(known))


# ---- status


def test_status_fits_on_a_screen(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.statuses = [serving(*(a_worker_status(f"d{number}") for number in range(1, 200)))]
    assert run(status, service) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "baton: serving"
    assert any(line.startswith("Goodput    90% since") for line in lines)
    assert lines[-1] == "and 171 more, all as these (--json shows them)"
    assert len(lines) <= 45


def test_status_shows_what_is_wrong_first(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.statuses = [serving(DRAINING, a_worker_status("d2", condition=WorkerCondition.SUSPECTED))]
    assert run(status, service) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "baton: degraded: 1 workers are suspected"
    rows = out.partition("worker ")[2].splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["d1", "d2", "d0", "p0"]
    assert "draining" in rows[0]


def test_status_as_json_has_the_health(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(status, service, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["health"], shown["schedulers"][0]["workers"][2]["condition"]) == ("serving", "draining")


def test_status_counts_the_requests_that_wait(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    none = dict.fromkeys(SloClass, 0)
    service.statuses = [
        a_service_status(a_scheduler_status(a_worker_status("p0"), a_worker_status("d0"), waiting=none))
    ]
    assert run(status, service) == 0
    assert "waiting: none\n" in capsys.readouterr().out
    some = none | {SloClass.BATCH: 2}
    service.statuses = [a_service_status(a_scheduler_status(waiting=some, oldest_wait_s=0.5))]
    run(status, service)
    assert "waiting: batch 2, for up to 0.5 s\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", [status, top, why])
def test_service_that_does_not_answer_is_2(
    service: Service, command: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service.url = "http://127.0.0.1:1"
    assert run(command, service) == 2
    assert "no service answers" in capsys.readouterr().err


def test_wrong_admin_key_is_named(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, f"{ADMIN_KEY[:-1]}x")
    assert run(status, service) == 2
    assert "the admin key is not that of this service" in capsys.readouterr().err


# ---- top


def test_top_is_printed_once_where_there_is_no_terminal(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(top, service) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "Baton  baton-demo  replica a"
    assert [row.split()[0] for row in rows if row.startswith(("p0", "d0"))] == ["d0", "p0"]


def test_document_of_another_version_is_not_shown(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.live = a_live_document(FORM + 1)
    assert run(top, service) == 2
    assert "the service has another version" in capsys.readouterr().err


# ---- why


def test_answers_are_printed_faults_first(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.statuses = [serving(a_worker_status("d2", condition=WorkerCondition.STALE), DRAINING)]
    assert run(why, service) == 0
    out = capsys.readouterr().out
    assert out.startswith("[fault] Why does decode worker d2 get few requests?\n  because  it has missed reports")
    assert "[normal]" in out
    assert run(why, service, "--faults", "--json") == 0
    assert {answer["weight"] for answer in json.loads(capsys.readouterr().out)} == {"fault"}


@pytest.mark.parametrize(("command", "more"), [(status, []), (why, []), (drain, ["d"])])
def test_texts_of_a_service_control_no_terminal(
    service: Service, capsys: pytest.CaptureFixture[str], command: ModuleType, more: list[str]
) -> None:
    worker = a_worker_status(f"d0{EVIL}", host=EVIL, condition=WorkerCondition.SUSPECTED, num_links=0)
    service.statuses = [a_service_status(a_scheduler_status(a_worker_status("p0"), worker), application=EVIL)]
    service.refusal = 409, {"error": {"message": EVIL, "code": EVIL}}
    run(command, service, *more)
    shown = "".join(capsys.readouterr())
    assert "owned" in shown and "\nowned" not in shown
    assert not {*map(category, shown.replace("\n", ""))} & {"Cc", "Cf"}


# ---- drain


def test_drain_waits_until_the_worker_is_empty(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    away = a_service_status()
    left = a_worker_status("d1", condition=WorkerCondition.DRAINING, num_leases=1)
    empty = a_worker_status("d1", condition=WorkerCondition.DRAINING)
    service.statuses = [serving(DRAINING), serving(DRAINING), away, serving(left), serving(empty)]
    assert run(drain, service, "d1", "--wait") == 0
    assert capsys.readouterr().out.splitlines() == [
        "worker d1 drains: it gets only what no other worker takes",
        "2 requests and 0 leases are left",
        "0 requests and 1 leases are left",
        "it is empty",
    ]
    assert service.posted == [("/admin/workers/d1", {"draining": True, "force": False})]


def test_worker_that_ends_while_it_drains_is_gone(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.statuses = [serving(DRAINING), serving()]
    assert run(drain, service, "d1", "--wait") == 0
    assert capsys.readouterr().out.endswith("it is gone\n")


def test_worker_is_not_gone_while_its_scheduler_may_not_have_heard_of_it(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [a_cell_view("a"), a_cell_view("b")]

    def two(*of_b: WorkerStatus, up_s: float = 3600.0) -> ServiceStatus:
        b = a_scheduler_status(*of_b, cell=CellName("b"), up_s=up_s)
        return a_service_status(a_scheduler_status(cell=CellName("a"), up_s=1.0), b, cells=cells)

    busy = a_worker_status("d5", num_open=40, cell=CellName("b"))
    b_is_away = a_service_status(a_scheduler_status(cell=CellName("a")), cells=cells)
    service.statuses = [two(busy), b_is_away, two(up_s=2.0), two(busy, up_s=3.0), two(up_s=16.0)]
    assert run(drain, service, "d5", "--wait") == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["40 requests and 0 leases are left", "it is gone"]
    service.statuses = [two(busy), b_is_away]
    assert run(drain, service, "d5", "--wait") == 1
    assert "gone" not in capsys.readouterr().out
    service.statuses = [b_is_away]
    assert run(drain, service, "d5") == 0
    assert "do not know it yet" in capsys.readouterr().out


def test_wait_can_be_ended_without_the_drain(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    assert run(drain, service, "d1", "--wait") == 0
    assert "still drains" in capsys.readouterr().out
    assert len(service.posted) == 1


def test_drain_is_undone(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(drain, service, "d1", "--undo") == 0
    assert capsys.readouterr().out == "worker d1 gets requests again\n"
    assert service.posted[0][1]["draining"] is False


def test_reason_of_the_service_is_shown(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.refusal = 409, {"error": {"message": "it is the last worker", "code": "last_worker_of_pool"}}
    assert run(drain, service, "d1", "--force") == 1
    assert capsys.readouterr().err == "baton: it is the last worker\n"
    assert service.posted[0][1]["force"] is True


@pytest.mark.parametrize(
    ("name", "meant"), [("d1", "d1"), ("d", "d"), ("p", "p0"), ("x", "x"), ("", ""), ("a/b?c", "a/b?c")]
)
def test_worker_is_named_by_how_its_id_begins(name: str, meant: str) -> None:
    workers: SchedulerStatus = a_scheduler_status(*(a_worker_status(one) for one in ("p0", "d0", "d1")))
    assert drain.named(workers.workers, name) == meant
