"""What the ingress serves that OpenAI's document does not have."""

from typing import Any

from api.wire.messages.errors import TYPES
from tests.conformance import anthropic_models

ROUTES: dict[str, str | None] = {
    "GET /healthz": None,
    "GET /readyz": None,
    "GET /version": None,
    "GET /openapi.json": None,
    "GET /docs": None,
    "POST /tokenize": None,
    "POST /detokenize": None,
    "HEAD /": None,
    "GET /": None,
    "GET /page/{file}": None,
    "GET /metrics": None,
    "GET /baton/cells": None,
    "GET /baton/links": None,
    "GET /baton/status": None,
    "GET /baton/queue": None,
    "GET /baton/receipts": None,
    "GET /baton/live": None,
    "POST /baton/chat": None,
    "GET /baton/receipts/{name}": None,
    "GET /baton/quality": None,
    "GET /baton/quality/reference": None,
    "POST /baton/quality/run": None,
    "POST /baton/quality/learn": None,
    "POST /baton/quality/release/{worker}": None,
    "POST /admin/workers/{worker}": None,
    "POST /admin/tenants": None,
    "GET /admin/tenants": None,
    "GET /admin/tenants/{tenant}": None,
    "POST /admin/tenants/{tenant}": None,
    "POST /admin/tenants/{tenant}/projects": None,
    "GET /admin/tenants/{tenant}/projects": None,
    "POST /admin/projects/{project}": None,
    "POST /admin/tenants/{tenant}/keys": None,
    "GET /admin/tenants/{tenant}/keys": None,
    "POST /admin/keys/{key}": None,
    "POST /admin/keys/{key}/rotate": None,
    "DELETE /admin/keys/{key}": None,
    "GET /admin/changes": None,
    "GET /admin/usage": None,
    "GET /admin/costs": None,
    "POST /v1/messages": anthropic_models.MESSAGE,
    "POST /v1/messages/count_tokens": anthropic_models.COUNT,
    "GET /v1/conversations": "ConversationList",
    "POST /v1/responses/{response}/regenerate": "Response",
    "POST /v1/feedback": None,
    "GET /v1/feedback": None,
    "DELETE /v1/feedback/{feedback}": None,
    "GET /v1/safety/events": None,
    "GET /v1/safety/events/{event}": None,
    "POST /v1/safety/appeals": None,
    "GET /v1/safety/appeals": None,
    "GET /v1/safety/appeals/{appeal}": None,
}
"""Our own routes, with the schema of their answers where it is made of OpenAI's. Parameters are in braces."""

ALWAYS = ("GET /readyz",)
"""Whatever the status: no errors, though it may be 503."""


def _page_of(schema: str) -> dict[str, Any]:
    """OpenAI's envelope of lists."""
    an_id = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    return {
        "type": "object",
        "properties": {
            "object": {"type": "string", "enum": ["list"]},
            "data": {"type": "array", "items": {"$ref": f"#/components/schemas/{schema}"}},
            "first_id": an_id,
            "last_id": an_id,
            "has_more": {"type": "boolean"},
        },
        "required": ["object", "data", "first_id", "last_id", "has_more"],
    }


STREAMED = {"POST /v1/messages": anthropic_models.EVENT}
"""The schemas of the events of our own routes, where another one than that of a whole answer holds."""

ERROR_OF_MESSAGES, PING = "MessagesError", "MessagesPing"
"""The schemas of every error on the paths of Anthropic's Messages API, and of the event that keeps a stream alive."""

FURTHER_EVENTS = {"error": ERROR_OF_MESSAGES, "ping": PING}
"""Events of the Messages API that Anthropic's models leave out, by their types."""

SCHEMAS = {
    "ConversationList": _page_of("ConversationResource"),
    PING: {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["ping"]}},
        "required": ["type"],
        "additionalProperties": False,
    },
    ERROR_OF_MESSAGES: {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["error"]},
            "error": {
                "type": "object",
                "properties": {
                    "type": {"type": "string", "enum": sorted(TYPES.values())},
                    "message": {"type": "string"},
                    "details": {"type": "object"},
                },
                "required": ["type", "message"],
                "additionalProperties": False,
            },
            "request_id": {"type": "string", "minLength": 1},
        },
        "required": ["type", "error", "request_id"],
        "additionalProperties": False,
    },
}
