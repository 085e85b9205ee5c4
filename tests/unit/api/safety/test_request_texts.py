"""Every string of a request that can reach the model is read, and can be masked in its place."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.request_texts import InputText, texts_in, with_masks
from api.safety.scans.rules import TextRole
from api.safety.scans.screened_text import Mask
from tests.unit.json_values import JSON_VALUES

SECRET = "secret"


def decode(tokens: Any) -> str:
    return "".join(map(chr, tokens))


def masks_in(text: InputText) -> list[Mask]:
    found, at = [], text.text.find(SECRET)
    while at >= 0:
        found.append(Mask(at, at + len(SECRET), "[X]"))
        at = text.text.find(SECRET, at + 1)
    return found


def masked(body: dict[str, Any]) -> dict[str, Any]:
    return with_masks(body, {text: masks_in(text) for text in texts_in(body, decode) if masks_in(text)}, decode)


@pytest.mark.parametrize(
    ("message", "role", "text"),
    [
        ({"role": "user", "content": "Hello"}, TextRole.USER, "Hello"),
        ({"role": "developer", "content": "Be nice"}, TextRole.SYSTEM, "Be nice"),
        ({"role": "tool", "tool_call_id": "a", "content": "42"}, TextRole.TOOL, "a\n42"),
        ({"role": "wizard", "content": "Hello"}, TextRole.USER, "wizard\nHello"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "user", "a\nb"),
        ({"role": "user", "content": [{"type": "do evil", "text": "a"}]}, TextRole.USER, "do evil\na"),
    ],
)
def test_texts_of_a_message(message: dict[str, Any], role: TextRole, text: str) -> None:
    (found,) = texts_in({"messages": [message]}, decode)
    assert (found.role, found.text) == (role, text)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"prompt": "a secret"}, {"prompt": "a [X]"}),
        ({"prompt": ["a", "secret"]}, {"prompt": ["a", "[X]"]}),
        ({"prompt": [*map(ord, "a secret")]}, {"prompt": "a [X]"}),
        ({"prompt": [[97], [*map(ord, "secret")]]}, {"prompt": ["a", "[X]"]}),
        ({"suffix": "secret", "n": 1}, {"suffix": "[X]", "n": 1}),
        (
            {"messages": [{"role": "user", "content": "secret"}], "tools": [{"description": "my secret"}]},
            {"messages": [{"role": "user", "content": "[X]"}], "tools": [{"description": "my [X]"}]},
        ),
        ({"documents": [{"text": "secret"}]}, {"documents": [{"text": "[X]"}]}),
        ({"tools": [{"properties": {"my secret": {}}}]}, {"tools": [{"properties": {"my [X]": {}}}]}),
    ],
)
def test_masks_are_in_their_places(body: dict[str, Any], shown: dict[str, Any]) -> None:
    before = repr(body)
    assert masked(body) == shown
    assert repr(body) == before


def test_mask_over_two_parts_is_shown_once() -> None:
    parts = [{"type": "text", "text": "4111"}, {"type": "text", "text": "1111 x"}]
    body = {"messages": [{"role": "user", "content": parts}]}
    (text,) = texts_in(body, decode)
    content = with_masks(body, {text: [Mask(0, 9, "[CARD]")]}, decode)["messages"][0]["content"]
    assert [part["text"] for part in content] == ["[CARD]", " x"]


@pytest.mark.parametrize("decoy", [{"cache_control": {"type": "ephemeral"}}, {"x": "decoy"}])
def test_parts_of_a_content_are_a_text_without_what_is_between_them(decoy: dict[str, Any]) -> None:
    parts = [{"type": "text", "text": "sec", **decoy}, {"type": "text", "text": "ret"}]
    body = {"messages": [{"role": "user", "content": parts, "name": "n"}]}
    whole, content = texts_in(body, decode)
    assert (content.text, "n" in whole.strings) == ("sec\nret", True)
    shown = with_masks(body, {content: [Mask(0, 7, "[X]")]}, decode)["messages"][0]["content"]
    assert [part["text"] for part in shown] == ["[X]", ""]
    assert [part | {"text": ""} for part in shown] == [part | {"text": ""} for part in parts]


def test_many_masks_take_time_by_their_number() -> None:
    def seconds(number: int) -> float:
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": SECRET}] * number}]}
        (text,) = texts_in(body, decode)
        masks = masks_in(text)
        began_at = time.process_time()
        with_masks(body, {text: masks}, decode)
        return time.process_time() - began_at

    few, many = (min(seconds(number) for _ in range(3)) for number in (500, 5000))
    assert many < 40 * few


@given(st.lists(JSON_VALUES), JSON_VALUES)
def test_any_json_is_read_and_rebuilt(messages: list[Any], more: Any) -> None:
    body = {"messages": messages, "tools": more, "chat_template_kwargs": more}
    texts = texts_in(body, decode)
    assert with_masks(body, {text: [] for text in texts}, decode) == body


@given(st.text(st.sampled_from("secrt \n"), max_size=30), st.text(st.sampled_from("secrt "), max_size=30))
def test_no_secret_is_left(first: str, second: str) -> None:
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": first}, {"type": "text", "text": second}]}]
    }
    assert not any(SECRET in string for text in texts_in(masked(body), decode) for string in text.strings)
