"""A field of a request is honoured or refused, and the answer reports the values that were used."""

import stat
from pathlib import Path
from typing import Any

import pytest

from api.wire.fields import check_fields
from api.wire.responses.request import request_of, response_of
from api.wire.slo import slo_class_of
from cluster.cli.serve.start_log import private
from cluster.errors import InvalidRequest

ASKED = {"model": "m", "input": "Hello"}
KNOWN = frozenset({"model", "tool_choice", "verbosity"})


@pytest.mark.parametrize(("asked", "said"), [("auto", "default"), (None, "default"), ("flex", "flex")])
def test_tier_is_said_that_was_used(asked: str | None, said: str) -> None:
    body = ASKED | {"service_tier": asked}
    response = response_of(request_of(body), "resp_1", 0, slo_class_of(body))
    assert response["service_tier"] == said


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"include": ["nonsense"]}, "include[0]"),
        ({"include": [1]}, "include[0]"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"budget": 1}}, "reasoning.budget"),
        ({"tool_choice": "message"}, "tool_choice"),
    ],
)
def test_what_a_response_cannot_do_is_refused(field: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        request_of(ASKED | field)
    assert error.value.param == param


@pytest.mark.parametrize("field", [{"include": ["reasoning.encrypted_content"]}, {"reasoning": {"summary": "auto"}}])
def test_what_common_clients_always_ask_for_passes(field: dict[str, Any]) -> None:
    assert request_of(ASKED | field).body.keys() >= field.keys()


def test_what_a_chat_cannot_do_is_refused() -> None:
    fields: list[dict[str, Any]] = [
        {"verbosity": "low"},
        {"tool_choice": {"type": "allowed_tools"}},
    ]
    for field in fields:
        with pytest.raises(InvalidRequest) as error:
            check_fields({"model": "m"} | field, KNOWN)
        assert error.value.param == next(iter(field))
    assert check_fields({"model": "m", "verbosity": "medium"}, KNOWN) == {"model": "m"}


def test_log_is_for_its_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "serve.log"
    file.parent.mkdir()
    file.touch(mode=0o644)  # as an earlier version has created it
    assert private(file) == file
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]
