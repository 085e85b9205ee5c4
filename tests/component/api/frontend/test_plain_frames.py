from pydantic import BaseModel

from api.frontend.plain_frames import _json_string


class Text(BaseModel):
    text: str


def test_every_character_is_escaped_as_vllm_s_serializer_does() -> None:
    text = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    assert b'{"text":' + _json_string(text) + b"}" == Text(text=text).model_dump_json().encode()
