"""/v1/responses/compact and /v1/responses/input_tokens: compaction of a conversation, and the length of a prompt."""

import time
from typing import Any

from fastapi import APIRouter, Request

from api.context.manager import ContextManager
from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import tenant_in_state
from api.responses.running_turns import input_of
from api.routes.call_headers import call_of, check_constraints_of, require_what_it_takes
from api.routes.counted_requests import counted
from api.routes.services import services_of
from api.server.json_body import checked, object_of
from api.state.lifecycle import ChatState
from api.state.postgres.stores.history import NOTHING, History
from api.state.postgres.stores.items import Item, new_id
from api.wire.responses.request import ResponseRequest, request_of

router = APIRouter(prefix="/v1/responses")

COMPACT = frozenset(
    {
        "input",
        "instructions",
        "model",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "service_tier",
    }
)
INPUT_TOKENS = frozenset(
    {
        "conversation",
        "input",
        "instructions",
        "model",
        "parallel_tool_calls",
        "previous_response_id",
        "reasoning",
        "text",
        "tool_choice",
        "tools",
        "truncation",
    }
)


@router.post("/compact")
@needs(Right.INFERENCE)
async def compact(request: Request) -> dict[str, Any]:
    """Make a conversation shorter: one item stands for it in later requests."""
    body = await object_of(request, COMPACT)
    wanted, call = await checked(request, body.get("input"), lambda: request_of(body)), call_of(request, body)
    history, items = await _conversation(request, wanted)
    item, usage = await _manager(request).compact(tenant_in_state(request), wanted, history, items, call)
    return {
        "id": new_id("resp"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [item],
        "usage": usage,
    }


@router.post("/input_tokens")
@needs(Right.INFERENCE)
@counted
async def input_tokens(request: Request) -> dict[str, Any]:
    """Count the tokens of the prompt of a response."""
    body = await object_of(request, INPUT_TOKENS)
    manager = _manager(request)
    (first, *_) = await services_of(request).frontend.models()
    body["model"] = body.get("model") or first["id"]
    await check_constraints_of(request, body)
    wanted = await checked(request, body.get("input"), lambda: request_of(body, manager.config.default_truncation))
    history, items = await _conversation(request, wanted)
    number = await manager.count(tenant_in_state(request), wanted, history, items)
    return {"object": "response.input_tokens", "input_tokens": number}


async def _conversation(request: Request, wanted: ResponseRequest) -> tuple[History, list[Item]]:
    """The history that the input follows, and the items of the input with ids. Raises Forbidden, NotFound,
    StateUnavailable.
    """
    require_what_it_takes(request, wanted)
    state: ChatState = services_of(request).chat_state
    tenant, history = tenant_in_state(request), NOTHING
    if wanted.conversation or wanted.previous:
        history = await state.stores.responses.history(tenant, wanted.conversation, wanted.previous)
    return history, await input_of(state, tenant, wanted)


def _manager(request: Request) -> ContextManager:
    manager: ContextManager = services_of(request).context
    return manager
