"""What the objects of OpenAI's client are expected to have. Their types have dozens of variants, most without it."""

from openai.types.responses import Response


def response_of(event: object) -> Response:
    """The response that an event of a stream carries."""
    response = getattr(event, "response", None)
    assert isinstance(response, Response), event
    return response


def first_text_of(item: object) -> str:
    """The text of the first part of a message."""
    text = getattr(content_of(item)[0], "text", None)
    assert isinstance(text, str), item
    return text


def content_of(item: object) -> list[object]:
    content = getattr(item, "content", None)
    assert isinstance(content, list), item
    return content


def id_of(item: object) -> str:
    found = getattr(item, "id", None)
    assert isinstance(found, str), item
    return found
