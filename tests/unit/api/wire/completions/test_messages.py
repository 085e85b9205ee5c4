from typing import Any

from api.wire.completions.messages import listed_messages

TEXT = {"type": "text", "text": "What is this?"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}


def listed(**message: Any) -> dict[str, Any]:
    (only,) = listed_messages("chatcmpl-1", [message])
    return only


def test_messages_have_ids_in_their_order() -> None:
    found = listed_messages("chatcmpl-1", [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    assert [(one["id"], one["role"], one["content"]) for one in found] == [
        ("chatcmpl-1-0", "system", "a"),
        ("chatcmpl-1-1", "user", "b"),
    ]


def test_parts_stand_beside_the_content() -> None:
    message = listed(role="user", content=[TEXT, IMAGE, AUDIO, "And that?"], name="ann")
    assert (message["content"], message["name"]) == (None, "ann")
    assert message["content_parts"] == [TEXT, IMAGE, {"type": "text", "text": "And that?"}]


def test_tool_calls_and_their_results_are_kept() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert listed(role="assistant", tool_calls=[call])["tool_calls"] == [call]
    assert listed(role="tool", tool_call_id="c", content="1")["tool_call_id"] == "c"
