"""/v1/chat/completions: completions that were stored.

The routes that generate completions are in api/routes/completions.py.
"""

from typing import Any

from fastapi import APIRouter, Request

from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import tenant_in_state
from api.routes.counted_requests import counted
from api.routes.services import services_of
from api.server.json_body import object_of
from api.state.lifecycle import ChatState
from api.state.postgres.stores.chat_completions import ChatCompletions
from api.wire.completions.messages import listed_messages
from api.wire.pages import listed, metadata_in, metadata_of, page_of, part_of
from cluster.errors import InvalidRequest

router = APIRouter(prefix="/v1/chat/completions")

UPDATED = frozenset({"metadata"})


@router.get("")
@needs(Right.STATE_READ)
async def list_completions(request: Request) -> dict[str, Any]:
    """List stored completions, the oldest first. `model`, `user` and `metadata[key]=value` are filters."""
    query, page = request.query_params, page_of(request.query_params, "asc")
    found = await _store(request).find(
        tenant_in_state(request), page, query.get("model"), query.get("user"), metadata_in(query)
    )
    return listed(found)


@router.get("/{completion}")
@needs(Right.STATE_READ)
async def retrieve(request: Request, completion: str) -> dict[str, Any]:
    """Answer with a stored completion."""
    return await _store(request).get(tenant_in_state(request), completion)


@router.post("/{completion}")
@needs(Right.STATE_READ, Right.STATE_WRITE)
@counted
async def update(request: Request, completion: str) -> dict[str, Any]:
    """Change the metadata of a stored completion."""
    body = await object_of(request, UPDATED)
    if "metadata" not in body:
        raise InvalidRequest("metadata is missing", "metadata", "missing_required_parameter")
    return await _store(request).update(tenant_in_state(request), completion, metadata_of(body["metadata"]))


@router.delete("/{completion}")
@needs(Right.STATE_WRITE)
async def delete(request: Request, completion: str) -> dict[str, Any]:
    """Delete a stored completion."""
    await _store(request).delete(tenant_in_state(request), completion)
    return {"id": completion, "object": "chat.completion.deleted", "deleted": True}


@router.get("/{completion}/messages")
@needs(Right.STATE_READ)
async def messages(request: Request, completion: str) -> dict[str, Any]:
    """List the messages that a completion answers, the oldest first."""
    page = page_of(request.query_params, "asc")
    found = await _store(request).messages(tenant_in_state(request), completion)
    return listed(part_of(listed_messages(completion, found), page))


def _store(request: Request) -> ChatCompletions:
    """The store of chat completions. Raises StateUnavailable."""
    state: ChatState = services_of(request).chat_state
    return state.stores.chat_completions
