"""Finds out what an endpoint serves, and how many tokens its model makes of a prompt."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from cluster.load.client.answer import WholeAnswer
from cluster.load.client.client import LoadClient
from cluster.load.client.endpoint import Api, Endpoint, body_of
from cluster.load.prompts.calibration import CountTokens
from cluster.load.prompts.counting import Probe
from cluster.load.record import MAX_ERROR
from cluster.unreadable import UNREADABLE

ASK_TIMEOUT_S = 60.0
"""Time for each question before a load, in seconds. Longer waits for an endpoint that hangs; shorter fails on one that
is still busy.
"""
MAX_NAMES = 20
"""Models that an error names. More make it unreadable."""


class UnusableEndpoint(ValueError):
    """The endpoint cannot be loaded as asked. The message says why."""


class ServedModel(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None
    """Most tokens of a prompt and its answer, where the endpoint tells, as vLLM does."""


class _ModelList(msgspec.Struct):
    data: list[ServedModel]


async def served_model(
    client: LoadClient, endpoint: Endpoint, headers: Mapping[str, str], name: str | None
) -> ServedModel:
    """The model of this name; None for the only one that is served.

    Raises:
        UnusableEndpoint: the endpoint does not answer, or has none or several models, of which none was named.
    """
    try:
        exchange = await client.exchange(endpoint.get("/models", headers), ASK_TIMEOUT_S)
    except (OSError, TimeoutError, ValueError) as error:
        raise UnusableEndpoint(f"no service answers at {endpoint.url} ({error or type(error).__name__})") from error
    try:
        models = msgspec.json.decode(exchange.whole, type=_ModelList).data if exchange.status == HTTPStatus.OK else []
    except UNREADABLE:
        models = []
    if name is not None:
        return next((model for model in models if model.id == name), ServedModel(name))
    if len(models) == 1:
        return models[0]
    if exchange.status != HTTPStatus.OK:
        raise UnusableEndpoint(f"{endpoint.url}/models answers {exchange.status}: {text_of(exchange.whole)}")
    names = ", ".join(repr(model.id) for model in models[:MAX_NAMES])
    raise UnusableEndpoint(f"name a model with --model: {endpoint.url} has {names or 'none'}")


def counter_of(
    client: LoadClient, endpoint: Endpoint, api: Api, model: str, headers: Mapping[str, str], fields: Mapping[str, Any]
) -> CountTokens:
    """Counts the tokens of prompts by asking for answers of one token.

    The counter raises UnusableEndpoint where the first question gets no answer, or one that says that the request is
    wrong: then all others would, too.
    """
    has_asked = False

    async def count(probe: Probe) -> int | None:
        nonlocal has_asked
        is_first, has_asked = not has_asked, True
        body = body_of(api, model, probe, 1, fields, is_streamed=False)
        try:
            exchange = await client.exchange(endpoint.post(api.path, headers, body), ASK_TIMEOUT_S)
        except (OSError, TimeoutError, ValueError) as error:
            if is_first and isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise UnusableEndpoint(f"no service answers at {endpoint.url} ({error})") from error
            return None
        is_wrong = HTTPStatus.BAD_REQUEST <= exchange.status < HTTPStatus.INTERNAL_SERVER_ERROR
        if is_first and is_wrong and exchange.status != HTTPStatus.TOO_MANY_REQUESTS:
            raise UnusableEndpoint(f"{endpoint.url}{api.path} answers {exchange.status}: {text_of(exchange.whole)}")
        if exchange.status != HTTPStatus.OK:
            return None
        try:
            return msgspec.json.decode(exchange.whole, type=WholeAnswer).num_prompt
        except UNREADABLE:
            return None

    return count


def text_of(body: bytes) -> str:
    """The beginning of a body, in one line that a terminal can show."""
    return line_of(body[: 4 * MAX_ERROR].decode(errors="replace"))


def line_of(text: str) -> str:
    """The beginning of a text of an endpoint, in one line that a terminal can show."""
    line = " ".join(text[: 4 * MAX_ERROR].split())
    return "".join(letter for letter in line if letter.isprintable())[:MAX_ERROR]
