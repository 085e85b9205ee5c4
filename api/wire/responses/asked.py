"""What is stored of the request of a response.

This module does not import the models of OpenAI's client, as api/wire/responses/request.py does for what clients send.
They take two seconds, for which each command on stored state would wait.
"""

from typing import Any, NamedTuple


class Asked(NamedTuple):
    """The request of a response that is stored, from which `request_again` makes a new request."""

    response: str
    """The id of the response."""
    body: dict[str, Any]
    """The body of the request, without its input."""
    items: list[dict[str, Any]]
    conversation: str | None
    previous: str | None
