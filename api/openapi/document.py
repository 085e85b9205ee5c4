"""The OpenAPI document of the public port, made from its routes and from the models and sets of fields that they read.
Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from api.openapi.headers import HEADERS
from api.openapi.operation import CREDENTIAL, ERROR, MESSAGES_ERROR, PublicRoute, RouteNotes, error_answer, operation_of
from api.openapi.schemas import STRING, Schema, reached

VERSION = "3.1.0"
"""Of OpenAPI. It takes JSON Schema 2020-12 as it is."""
NOTHING = RouteNotes()

_NULLABLE: Schema = {"type": ["string", "null"]}
_ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"message": STRING, "type": STRING, "param": _NULLABLE, "code": _NULLABLE},
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_MESSAGES_ERROR: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {"type": "object", "properties": {"type": STRING, "message": STRING}, "required": ["type", "message"]},
        "request_id": STRING,
    },
    "required": ["type", "error", "request_id"],
}
_ERRORS = {ERROR: _ERROR, MESSAGES_ERROR: _MESSAGES_ERROR}


def document_of(
    routes: Sequence[PublicRoute], described: Mapping[str, RouteNotes], schemas: Mapping[str, Schema], version: str
) -> dict[str, Any]:
    """`described`: by method and path. `schemas`: what the operations may refer to. `version`: Baton's."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = operation_of(route, described.get(route.name, NOTHING))
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    errors = {shape: error_answer(shape) for shape in _ERRORS}
    return {
        "openapi": VERSION,
        "info": {
            "title": "Baton",
            "version": version,
            "description": "The public port: OpenAI's API, Anthropic's Messages, and what vLLM and Baton add. Content "
            "other than text is refused.",
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {
            "schemas": reached([paths, errors], {**schemas, **_ERRORS}),
            "responses": errors,
            "headers": {name: {"description": text, "schema": STRING} for name, text in HEADERS.items()},
            "securitySchemes": {
                CREDENTIAL: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, or a token of the issuer that this service trusts. The scopes of an "
                    "operation are the rights that it needs.",
                }
            },
        },
    }
