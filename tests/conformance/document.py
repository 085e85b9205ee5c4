"""OpenAI's OpenAPI document: which schema an answer must follow, and where it does not."""

import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import jsonschema_rs

from api.wire.messages.surface import is_of_messages
from bench.data.shared_data import shared_file
from tests.conformance import anthropic_models, ours

NAME = "notes/openai-openapi.json.gz"
"""github.com/openai/openai-openapi as JSON, in the folder beside the checkout (bench/data/shared_data.py)."""

JSON, EVENTS = "application/json", "text/event-stream"

ERROR = "ErrorResponse"
"""The schema of every answer with a status from 400 on. The document names it for few."""

STREAMED_AS_WHOLE = "POST /v1/completions"
"""Chunks have the schema of the whole: the document says so in words alone."""

STREAMED_TOO = re.compile("GET /v1/responses/[^/]+|POST /v1/responses/[^/]+/regenerate")
"""Responses that are resumed, which the document says by its parameters alone, or generated anew, which it has not."""

EVENT, SOCKET_EVENT = "ResponseStreamEvent", "ResponsesServerEvent"
"""Unions, of which `type` says the member: what a stream has as its events, and a WebSocket as its messages."""

NAMED = (EVENT, anthropic_models.EVENT)
"""The schemas of events whose frames also name the type."""

Schema = dict[str, Any]

_URI = "urn:openai"


class Deviation(NamedTuple):
    schema: str
    """The name of the schema in the document."""
    path: str
    """The place in the body, such as `/choices/0/message`."""
    message: str

    def __str__(self) -> str:
        return f"{self.schema} {self.path or '/'}: {self.message}"


class Document:
    def __init__(self) -> None:
        told = json.loads(gzip.decompress(shared_file(NAME).read_bytes()))
        schemas = _with_nulls(told["components"]["schemas"] | ours.SCHEMAS)
        self._ours = [(_pattern(route), route, schema) for route, schema in ours.ROUTES.items()]
        self._routes = [
            (_pattern(f"{method.upper()} /v1{path}"), operation["responses"])
            for path, operations in sorted(told["paths"].items(), key=lambda item: item[0].count("{"))
            for method, operation in operations.items()
            if "responses" in operation
        ]
        self._events = {
            schemas[name]["properties"]["type"]["enum"][0]: name for name in map(_name_of, schemas[EVENT]["anyOf"])
        }
        self.of_sockets: dict[str, str] = {}
        """The schemas of a WebSocket's messages, by their types."""
        for member in schemas[SOCKET_EVENT]["anyOf"]:
            plain = _name_of(member["allOf"][0] if "allOf" in member else member)
            name = member.get("title", plain)
            self.of_sockets[schemas[plain]["properties"]["type"]["enum"][0]] = name
            schemas.setdefault(name, member)
        resources = [(_URI, {"components": {"schemas": schemas}})]
        self._registry = jsonschema_rs.Registry(resources, retriever=_nothing_from_elsewhere)
        self._validators: dict[str, jsonschema_rs.Validator] = {}

    def schema_of(self, asked: str, status: int, media_type: str) -> str | None:
        """Of an answer to `POST /v1/responses`, say, or of each event of one; None where nothing is said of it.

        Raises LookupError for an answer that neither the document nor we have.
        """
        if media_type == EVENTS and status < 400:
            if STREAMED_TOO.fullmatch(asked):
                return EVENT
            if asked in ours.STREAMED:
                return ours.STREAMED[asked]
        for pattern, route, schema in self._ours:
            if pattern.fullmatch(asked) and (status < 400 or route in ours.ALWAYS):
                return schema
        if status >= 400 and media_type == JSON:
            return ours.ERROR_OF_MESSAGES if is_of_messages(asked.partition(" ")[2]) else ERROR
        for pattern, responses in self._routes:
            if pattern.fullmatch(asked) and status < 400:
                content = responses[str(status)].get("content")
                kind = JSON if asked == STREAMED_AS_WHOLE else media_type
                return _name_of(content[kind]["schema"]) if content else None
        raise LookupError

    def schema_of_event(self, schema: str, event: Any) -> str:
        """The schema of one event of a stream. Raises LookupError for a type that the document does not have."""
        if schema in (EVENT, SOCKET_EVENT):
            return (self._events if schema == EVENT else self.of_sockets)[event.get("type")]
        if schema == anthropic_models.EVENT:
            return ours.FURTHER_EVENTS.get(event.get("type"), schema)
        return ERROR if "error" in event else schema

    def deviations(self, schema: str, value: Any) -> Iterator[Deviation]:
        if anthropic_models.is_of_anthropic(schema):
            for fault in anthropic_models.faults(schema, value):
                yield Deviation(schema, *fault)
            return
        if schema == ours.ERROR_OF_MESSAGES:
            yield from self.deviations(anthropic_models.ERROR, value)
        for error in self._validator(schema).iter_errors(value):
            for cause in _causes(error):
                path = "".join(f"/{step}" for step in cause.instance_path)
                yield Deviation(schema, path, cause.message)

    def _validator(self, schema: str) -> jsonschema_rs.Validator:
        if schema not in self._validators:
            self._validators[schema] = jsonschema_rs.validator_for(
                {"$ref": f"{_URI}#/components/schemas/{schema}"},
                registry=self._registry,
                retriever=_nothing_from_elsewhere,
            )
        return self._validators[schema]


@cache
def document() -> Document:
    return Document()


def _pattern(route: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route)))


def _with_nulls(node: Any) -> Any:
    """With `nullable`, which version 3.1 of OpenAPI has no more, said in its way."""
    if isinstance(node, list):
        return [_with_nulls(one) for one in node]
    if not isinstance(node, dict):
        return node
    told = {name: _with_nulls(value) for name, value in node.items()}
    if told.get("nullable") is True:
        return {"anyOf": [told, {"type": "null"}]}
    return told


def _name_of(reference: Schema) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _causes(error: Any) -> Iterator[Any]:
    """What is wrong in the branch of a union that is meant: the one with the right type, or with the fewest errors."""
    branches = getattr(error.kind, "context", None)
    if not branches or not all(branches):
        yield error
        return
    depth = len(error.instance_path)
    for cause in min(branches, key=lambda errors: (sum(_is_another(one, depth) for one in errors), len(errors))):
        yield from _causes(cause)


def _is_another(error: Any, depth: int) -> bool:
    """Whether the value is of another kind than this branch of a union."""
    return error.kind.name in ("type", "enum") and error.instance_path[depth:] in ([], ["type"], ["role"])


def _nothing_from_elsewhere(uri: str) -> Any:
    raise ValueError(f"the document refers to {uri}, which is not in it")
