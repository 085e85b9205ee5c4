"""One route of the public port, as the document describes it. Pure."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from api.openapi.headers import ON_ERRORS, ON_EVERY_ANSWER, ON_GENERATED
from api.openapi.schemas import OBJECT, STRING, Schema, ref

JSON = "application/json"
ERROR, MESSAGES_ERROR = "Error", "MessagesError"
"""The shapes of errors: OpenAI's, and that of Anthropic's Messages API."""
CREDENTIAL = "credential"

_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


class Parameter(NamedTuple):
    name: str
    schema: Schema = STRING
    place: str = "query"
    """OpenAPI's `in`: query, header or path."""
    is_required: bool = False
    style: str | None = None


@dataclass(frozen=True, kw_only=True)
class RouteNotes:
    """What the function of a route does not say of itself."""

    body: Schema | None = None
    """The schema of the request body. None for a route without one."""
    parameters: Sequence[Parameter] = ()
    answer: Schema | None = None
    """The schema of an answer with status 200. None for any JSON object, and for an answer that is not JSON."""
    events: Schema | None = None
    """The schema of each event of a stream. None for a route that does not stream."""
    media_type: str = JSON
    """Of the answer."""
    is_generated: bool = False
    """Whether a model generates the answer, so that the answer says how."""
    error: str = ERROR
    """The shape of its errors."""
    unready: str = ""
    """When the status is 503 with the same body as that of 200. Empty for never."""


class PublicRoute(NamedTuple):
    method: str
    path: str
    endpoint: Callable[..., Any]
    rights: Sequence[str]
    """Rights that a credential needs for it. None of them for a route that asks for no credential."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def tag(self) -> str:
        """The module of the route, as words."""
        return self.endpoint.__module__.rpartition(".")[2].replace("_", " ")


def operation_of(route: PublicRoute, described: RouteNotes) -> dict[str, Any]:
    """OpenAPI's operation object."""
    summary, text = _told(route.endpoint)
    if route.rights:
        text = f"{text}\n\nNeeds the rights: {', '.join(route.rights)}.".strip()
    operation: dict[str, Any] = {
        "operationId": f"{route.tag}_{route.endpoint.__name__}".replace(" ", "_"),
        "tags": [route.tag],
        "summary": summary,
        **({"description": text} if text else {}),
        "security": [{CREDENTIAL: list(route.rights)}] if route.rights else [],
        "responses": _answers(described),
    }
    in_path = [Parameter(name, STRING, "path", True) for name in _PATH_PARAMETER.findall(route.path)]
    if parameters := [_parameter(one) for one in (*in_path, *described.parameters)]:
        operation["parameters"] = parameters
    if described.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": described.body}}}
    return operation


def _told(endpoint: Callable[..., Any]) -> tuple[str, str]:
    """The first sentence of what a function says of itself, and the sentences that follow."""
    told = " ".join((endpoint.__doc__ or "").split())
    first, _, rest = told.partition(". ")
    return first.removesuffix("."), rest


def _parameter(parameter: Parameter) -> dict[str, Any]:
    told: dict[str, Any] = {"name": parameter.name, "in": parameter.place, "schema": parameter.schema}
    if parameter.is_required:
        told["required"] = True
    return told | {"style": parameter.style, "explode": True} if parameter.style else told


def _answers(described: RouteNotes) -> dict[str, Any]:
    answer = described.answer or (OBJECT if described.media_type == JSON else STRING)
    content: dict[str, Any] = {described.media_type: {"schema": answer}}
    if described.events is not None:
        # The type of a stream has no schema in OpenAPI 3.1: this one is of the `data` of each event
        content["text/event-stream"] = {"schema": described.events}
    names = (*ON_EVERY_ANSWER, *(ON_GENERATED if described.is_generated else ()))
    answers: dict[str, Any] = {"200": {"description": "OK", "headers": _headers(names), "content": content}}
    if described.unready:
        answers["503"] = {**answers["200"], "description": described.unready}
    return answers | {"default": {"$ref": f"#/components/responses/{described.error}"}}


def error_answer(shape: str) -> dict[str, Any]:
    """Every answer with a status from 400 on, but for those that a route describes."""
    headers = _headers((*ON_EVERY_ANSWER, *ON_ERRORS))
    return {"description": "An error", "headers": headers, "content": {JSON: {"schema": ref(shape)}}}


def _headers(names: Sequence[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
