"""`baton trace` as a user runs it, against a server that answers as an ingress does."""

import argparse
import json
from typing import Any

import msgspec
import pytest

from cluster.cli.operate.trace import add_arguments, text_of
from cluster.config.environment import ADMIN_KEY_VARIABLE
from cluster.messages.ids import Outcome
from cluster.messages.timeline import TimelineStage
from router.session.waterfall import waterfall_of
from tests.component.app_with_fakes import ADMIN_KEY
from tests.component.cluster.cli.conftest import server as server
from tests.unit.api.server.test_kept_receipts import ATTEMPT, PLACED
from tests.unit.factories import a_receipt

RECEIPT = a_receipt(
    placement=PLACED,
    attempts=(ATTEMPT,),
    timeline=(TimelineStage("prepare", 0.0, 0.1, "ingress"),),
    sources=ATTEMPT.sources,
    http_request="req_1",
    duration_s=2.0,
)
FAILED = a_receipt("r0", outcome=Outcome.FAILED, error="worker_failed\x1b[31m", ttft_s=None, tpot_s=None)
BODY = {"receipts": [], "waterfalls": [waterfall_of(RECEIPT), waterfall_of(FAILED)]}
NOT_FOUND = {"error": {"message": "no kept receipt has this id", "code": "receipt_not_found"}}
ANSWERS = {
    "/baton/receipts/req_1": (200, msgspec.json.encode(BODY)),
    "/baton/receipts/a%2Fb": (200, msgspec.json.encode(BODY)),
    "/baton/receipts/unknown": (404, msgspec.json.encode(NOT_FOUND)),
}


def baton_trace(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed = parser.parse_args(arguments)
    code: int = parsed.run(parsed)
    return code


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, ADMIN_KEY)


def test_waterfall_shows_where_the_time_went() -> None:
    lines = text_of(waterfall_of(RECEIPT)).splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines[: lines.index("")])
    assert facts["path"] == "D: least cost"
    assert facts["TTFT"] == "500.0 ms, predicted 400.0 ms (1.25 times that), objective 1000.0 ms"
    assert facts["generating"] == "1 computed, 3 local"
    rows = lines[lines.index("") + 1 :]
    assert [row.split()[0] for row in rows] == ["prepare", "prefill", "--", "decode"]
    assert rows[1].split()[1:5] == ["d0", "100.0", "+400.0", "#" * rows[1].count("#")]
    assert rows[1].endswith("tokens=4")
    assert rows[3].index("#") > rows[1].index("#")


def test_stages_that_nothing_has_measured_are_marked_and_their_share_is_told() -> None:
    text = text_of(waterfall_of(RECEIPT))
    assert "0.0 ms of it (0.0%) are not measured" in text
    assert "~" not in text
    left = TimelineStage("network", 0.4, 0.5, "d0")
    text = text_of(waterfall_of(msgspec.structs.replace(RECEIPT, timeline=(left,))))
    assert "100.0 ms of it (20.0%) are not measured" in text
    assert any(line.startswith("~network ") for line in text.splitlines())
    assert text.splitlines()[-1].startswith("~ not measured:")
    unanswered = text_of(waterfall_of(FAILED))
    assert "not measured" not in unanswered


def test_latest_request_is_printed_and_all_if_asked(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert baton_trace("req_1", "--url", server) == 0
    said = capsys.readouterr()
    assert "request    r (x-request-id req_1)" in said.out
    assert "r0" not in said.out
    assert "1 earlier ones have the same id" in said.err
    assert baton_trace("a/b", "--all", "--url", server) == 0
    assert "failed: worker_failed?[31m" in capsys.readouterr().out


def test_answer_is_printed_as_it_came(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert baton_trace("req_1", "--json", "--url", server) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert len(shown["waterfalls"]) == 2


def test_id_that_is_not_kept_is_said_to_be_so(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert baton_trace("unknown", "--url", server) == 1
    assert "no kept receipt has the id unknown" in capsys.readouterr().err
