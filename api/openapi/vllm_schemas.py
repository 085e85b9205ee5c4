"""The JSON schemas of vLLM's request and answer models, without the fields that clients may not set or do not get."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
)
from vllm.entrypoints.openai.completion.protocol import (
    CompletionRequest,
    CompletionResponse,
    CompletionStreamResponse,
)
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
    TokenizeResponse,
)

from api.openapi.schemas import REF, Schema, of_fields
from api.wire.fields import ONLY, PRIVILEGED, UNSUPPORTED, WITHOUT_EFFECT
from api.wire.public_bodies import INTERNAL
from api.wire.responses.request import TYPES
from api.wire.safety.safety_settings import MODERATION, SETTINGS

_GENERATING: tuple[type[BaseModel], ...] = (ChatCompletionRequest, CompletionRequest)
_TOKENIZING: tuple[type[BaseModel], ...] = (TokenizeCompletionRequest, TokenizeChatRequest, DetokenizeRequest)
_ANSWERS: tuple[type[BaseModel], ...] = (
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
    CompletionResponse,
    CompletionStreamResponse,
    TokenizeResponse,
    DetokenizeResponse,
)


def vllm_schemas() -> dict[str, Schema]:
    """Schemas by name. It takes half a second, with the interpreter held for most of it."""
    requests = (*_GENERATING, *_TOKENIZING)
    _, found = models_json_schema(
        [*((model, "validation") for model in requests), *((model, "serialization") for model in _ANSWERS)],
        ref_template=REF + "{model}",
    )
    schemas: dict[str, Schema] = {name: _without_titles(schema) for name, schema in found["$defs"].items()}
    for model in requests:
        _restrict(schemas[model.__name__], PRIVILEGED | UNSUPPORTED)
        # api/wire/fields.py refuses unknown fields; vLLM's models would take them
        schemas[model.__name__]["additionalProperties"] = False
    for model in _GENERATING:
        ours = of_fields(WITHOUT_EFFECT | {MODERATION, SETTINGS}, TYPES)["properties"]
        properties = schemas[model.__name__]["properties"]
        schemas[model.__name__]["properties"] = ours | properties | {name: {"const": ONLY[name]} for name in ONLY}
    for schema in schemas.values():
        if "properties" in schema:
            _restrict(schema, INTERNAL)
    return schemas


def _restrict(schema: Schema, hidden: frozenset[str]) -> None:
    """Take fields out of the schema of an object."""
    schema["properties"] = {name: one for name, one in schema["properties"].items() if name not in hidden}
    if "required" in schema:
        schema["required"] = [name for name in schema["required"] if name not in hidden]


def _without_titles(node: Any) -> Any:
    """The schema without the titles that pydantic makes of names. A property of that name has a schema, not a text."""
    if isinstance(node, dict):
        return {name: _without_titles(one) for name, one in node.items() if name != "title" or not isinstance(one, str)}
    return [_without_titles(one) for one in node] if isinstance(node, list) else node
