from typing import Any

import pytest

from api.wire.fields import PRIVILEGED, UNSUPPORTED, WITHOUT_EFFECT, check_fields
from cluster.errors import InvalidRequest

KNOWN = frozenset({"model", "messages", "temperature", "chat_template_kwargs"}) | PRIVILEGED | UNSUPPORTED


def checked(**fields: Any) -> dict[str, Any]:
    return check_fields({"model": "m"} | fields, KNOWN)


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        checked(**fields)
    return refused.value


def test_known_fields_are_kept() -> None:
    assert checked(temperature=0.5) == {"model": "m", "temperature": 0.5}


@pytest.mark.parametrize("name", sorted(PRIVILEGED))
def test_field_that_reaches_into_the_engines_is_refused(name: str) -> None:
    error = refusal(**{name: {}})
    assert (str(error), error.param, error.code) == (
        f"'{name}' cannot be set by clients",
        name,
        "unsupported_parameter",
    )


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_field_that_would_change_the_answer_is_refused(name: str) -> None:
    error = refusal(**{name: {}})
    assert (str(error), error.param, error.code) == (f"'{name}' is not supported", name, "unsupported_parameter")


def test_unknown_field_is_refused_by_name() -> None:
    error = refusal(temprature=1)
    assert (str(error), error.param, error.code) == (
        "unknown parameter: 'temprature'",
        "temprature",
        "unknown_parameter",
    )


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_field_without_effect_is_accepted_and_dropped(name: str) -> None:
    assert checked(**{name: "anything"}) == {"model": "m"}


@pytest.mark.parametrize("name", ["temperature", "kv_transfer_params", "audio", "no_such_field"])
def test_null_is_the_same_as_absent(name: str) -> None:
    assert checked(**{name: None}) == {"model": "m"}


@pytest.mark.parametrize("value", [0, False, "", [], {}], ids=repr)
def test_empty_values_are_not_null(value: int | bool | str | list[Any] | dict[Any, Any]) -> None:
    assert checked(temperature=value) == {"model": "m", "temperature": value}
    assert refusal(priority=value).param == "priority"


@pytest.mark.parametrize("body", [None, [], "text", 1, True, [{"model": "m"}]], ids=repr)
def test_body_that_is_not_an_object_is_refused(body: list[Any] | str | int | bool | None) -> None:
    with pytest.raises(InvalidRequest, match="must be a JSON object") as refused:
        check_fields(body, KNOWN)
    assert refused.value.code == "invalid_type"


def test_text_is_the_only_modality() -> None:
    assert checked(modalities=["text"]) == {"model": "m"}
    assert refusal(modalities=["text", "audio"]).param == "modalities"


def test_chat_template_cannot_come_in_by_the_back_door() -> None:
    assert refusal(chat_template_kwargs={"chat_template": "x"}).param == "chat_template_kwargs.chat_template"
    assert checked(chat_template_kwargs={"enable_thinking": False})["chat_template_kwargs"] == {
        "enable_thinking": False
    }


def test_body_is_left_as_it_was() -> None:
    body = {"model": "m", "user": "u", "temperature": None}
    check_fields(body, KNOWN)
    assert body == {"model": "m", "user": "u", "temperature": None}
