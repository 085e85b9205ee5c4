"""What the document says of each public route beside its path, its rights and its docstring: the body, the parameters
and the answer.

The sets of fields are those that the routes themselves check. tests/component/api/routes/vllm/test_described.py asks
each route for what stands here.
"""

from collections.abc import Iterable

from api.openapi.operation import MESSAGES_ERROR, Parameter, RouteNotes
from api.openapi.schemas import OBJECT, STRING, Schema, list_of, of_fields, ref
from api.responses.idempotency import KEY_HEADER, MAX_KEY
from api.routes import context
from api.routes.stored import conversations, stored_completions
from api.wire import feedback
from api.wire.messages import request as messages
from api.wire.organization import usage
from api.wire.pages import DEFAULT_LIMIT, MAX_LIMIT, MAX_TITLE
from api.wire.query import MAX_DIGITS
from api.wire.response_headers import PATH
from api.wire.responses.request import INCLUDABLE, KNOWN, OVERRIDES, TYPES
from api.wire.safety import appeals, moderations
from api.wire.safety.moderation_results import FURTHER
from api.wire.slo import LEAST_MS, TIERS, TPOT_HEADER, TTFT_HEADER
from cluster.messages.ids import Path

_PAGED = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}),
    Parameter("order", {"type": "string", "enum": ["asc", "desc"]}),
    Parameter("after"),
)
_METADATA = Parameter("metadata", {"type": "object", "additionalProperties": STRING}, style="deepObject")
_MILLISECONDS: Schema = {"type": "number", "minimum": LEAST_MS}
_TERMS = (
    Parameter(TTFT_HEADER, _MILLISECONDS, "header"),
    Parameter(TPOT_HEADER, _MILLISECONDS, "header"),
    Parameter(PATH, {"type": "string", "enum": [str(path) for path in Path]}, "header"),
)
_TURN = (*_TERMS, Parameter(KEY_HEADER, {"type": "string", "minLength": 1, "maxLength": MAX_KEY}, "header"))
_TIER: Schema = {"enum": [*TIERS]}
_OF_RESPONSES = TYPES | {
    "conversation": (str, dict),
    "include": list_of({"enum": sorted(INCLUDABLE)}),
    "input": (str, list),
    "service_tier": _TIER,
    "truncation": {"enum": ["auto", "disabled"]},
}
_OF_MESSAGES = {
    **dict.fromkeys(("max_tokens", "top_k"), int),
    **dict.fromkeys(("metadata", "output_config", "thinking", "tool_choice"), dict),
    **dict.fromkeys(("temperature", "top_p"), (int, float)),
    "messages": list,
    "model": str,
    "service_tier": {"enum": [*TIERS, *messages.TIERS]},
    "stop_sequences": list_of(STRING),
    "stream": bool,
    "system": (str, list),
    "tools": list,
}
_COUNTED_OF_MESSAGES = {
    name: _OF_MESSAGES[name]
    for name in ("messages", "model", "output_config", "system", "thinking", "tool_choice", "tools")
}
"""The others count nothing, and are not looked at."""
_TITLE: Schema = {"type": "string", "maxLength": MAX_TITLE}
_RATING: Schema = {"enum": [*feedback.RATINGS, *set(feedback.RATINGS.values())]}
_LABELS: Schema = list_of({"type": "string", "minLength": 1, "maxLength": feedback.MAX_LABEL}) | {
    "maxItems": feedback.MAX_LABELS
}
_COMMENT: Schema = {"type": "string", "maxLength": feedback.MAX_COMMENT}
_WORDS: Schema = {"type": "string", "pattern": r"\S"}
_FILTER: Schema = {"type": "string", "minLength": 1, "maxLength": appeals.MAX_FILTER}
_TIME: Schema = {"type": "integer", "minimum": 0, "maximum": usage.MAX_TIME}
_OF_SUMS: dict[str, Schema] = {
    "bucket_width": {"enum": [*usage.WIDTHS]},
    "end_time": _TIME,
    "limit": {"type": "integer", "minimum": 1},
    "start_time": _TIME,
}
_VALUE: Schema = {"type": "string", "maxLength": usage.MAX_FILTER_CHARACTERS}
_OF_LISTS: dict[str, Schema] = {"group_by": {"enum": [*usage.GROUPS]}}
_SUMS = (
    *(Parameter(name, list_of(_OF_LISTS.get(name, _VALUE))) for name in sorted(usage.LISTS)),
    *(Parameter(name, _OF_SUMS.get(name, STRING), is_required=name == "start_time") for name in sorted(usage.SINGLE)),
)


def _with(names: Iterable[str]) -> tuple[Parameter, ...]:
    """A list in pages, with filters."""
    return (*(Parameter(name) for name in names), *_PAGED)


DESCRIBED: dict[str, RouteNotes] = {
    "POST /v1/chat/completions": RouteNotes(
        body=ref("ChatCompletionRequest"),
        answer=ref("ChatCompletionResponse"),
        events=ref("ChatCompletionStreamResponse"),
        parameters=_TERMS,
        is_generated=True,
    ),
    "POST /v1/completions": RouteNotes(
        body=ref("CompletionRequest"),
        answer=ref("CompletionResponse"),
        events=ref("CompletionStreamResponse"),
        parameters=_TERMS,
        is_generated=True,
    ),
    "POST /v1/messages": RouteNotes(
        body=of_fields(messages.READ | messages.IGNORED, _OF_MESSAGES, ["max_tokens", "messages", "model"]),
        events=OBJECT,
        parameters=_TERMS,
        is_generated=True,
        error=MESSAGES_ERROR,
    ),
    "POST /v1/messages/count_tokens": RouteNotes(
        body=of_fields(messages.READ | messages.IGNORED, _COUNTED_OF_MESSAGES, ["messages", "model"]),
        error=MESSAGES_ERROR,
    ),
    "POST /v1/responses": RouteNotes(
        body=of_fields(KNOWN, _OF_RESPONSES, ["model"]), events=OBJECT, parameters=_TURN, is_generated=True
    ),
    "GET /v1/responses/{response}": RouteNotes(
        events=OBJECT,
        parameters=(
            Parameter("stream", {"type": "boolean"}),
            Parameter("starting_after", {"type": "integer", "minimum": 0, "maximum": 10**MAX_DIGITS - 1}),
        ),
    ),
    "POST /v1/responses/{response}/regenerate": RouteNotes(
        body=of_fields(OVERRIDES, _OF_RESPONSES), events=OBJECT, parameters=_TURN, is_generated=True
    ),
    "POST /v1/responses/{response}/cancel": RouteNotes(),
    "GET /v1/responses/{response}/input_items": RouteNotes(parameters=_PAGED),
    "POST /v1/responses/compact": RouteNotes(
        body=of_fields(context.COMPACT, _OF_RESPONSES, ["model"]), parameters=_TERMS
    ),
    "POST /v1/responses/input_tokens": RouteNotes(body=of_fields(context.INPUT_TOKENS, _OF_RESPONSES)),
    "GET /v1/chat/completions": RouteNotes(parameters=(*_with(("model", "user")), _METADATA)),
    "POST /v1/chat/completions/{completion}": RouteNotes(
        body=of_fields(stored_completions.UPDATED, {"metadata": {"type": ["object", "null"]}}, ["metadata"])
    ),
    "GET /v1/chat/completions/{completion}/messages": RouteNotes(parameters=_PAGED),
    "POST /v1/conversations": RouteNotes(
        body=of_fields(conversations.CREATED, {"items": list, "metadata": dict, "title": _TITLE, "user": str})
    ),
    "GET /v1/conversations": RouteNotes(parameters=(*_with(("query", "user")), _METADATA)),
    "POST /v1/conversations/{conversation}": RouteNotes(
        body=of_fields(conversations.UPDATED, {"metadata": dict, "title": _TITLE})
    ),
    "POST /v1/conversations/{conversation}/items": RouteNotes(
        body=of_fields(conversations.ADDED, {"items": list}, ["items"])
    ),
    "GET /v1/conversations/{conversation}/items": RouteNotes(parameters=_PAGED),
    "POST /v1/feedback": RouteNotes(
        body=of_fields(
            feedback.KNOWN,
            {
                "comment": _COMMENT,
                "item_id": str,
                "labels": _LABELS,
                "rating": _RATING,
                "response_id": str,
                "user": str,
            },
            ["rating", "response_id"],
        )
    ),
    "GET /v1/feedback": RouteNotes(
        parameters=(Parameter("rating", {"enum": [*feedback.RATINGS]}), *_with(("response_id",)))
    ),
    "POST /v1/moderations": RouteNotes(
        body=of_fields(
            moderations.KNOWN, {"include": list_of({"enum": [*FURTHER]}), "input": (str, list), "model": str}, ["input"]
        )
    ),
    "GET /v1/safety/events": RouteNotes(parameters=(*(Parameter(name, _FILTER) for name in appeals.FILTERS), *_PAGED)),
    "POST /v1/safety/appeals": RouteNotes(
        body=of_fields(appeals.KNOWN, dict.fromkeys(appeals.KNOWN, _WORDS), appeals.KNOWN)
    ),
    "GET /v1/safety/appeals": RouteNotes(parameters=_PAGED),
    "GET /v1/organization/usage/completions": RouteNotes(parameters=_SUMS),
    "GET /v1/organization/costs": RouteNotes(parameters=_SUMS),
    "POST /tokenize": RouteNotes(
        body={"oneOf": [ref("TokenizeCompletionRequest"), ref("TokenizeChatRequest")]}, answer=ref("TokenizeResponse")
    ),
    "POST /detokenize": RouteNotes(body=ref("DetokenizeRequest"), answer=ref("DetokenizeResponse")),
    "GET /docs": RouteNotes(media_type="text/html"),
    "GET /healthz": RouteNotes(unready="The replica is full, and no request ends"),
    "GET /readyz": RouteNotes(unready="No prefill worker can hand over to a decode worker"),
}
"""By method and path. A route without a body, without parameters and with any object as its answer needs no entry."""
