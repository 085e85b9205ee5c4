"""/v1/conversations: OpenAI's conversations and their items, and a list of conversations, which OpenAI has not."""

from typing import Any

from fastapi import APIRouter, Request, Response

from api.routes.copies import answer_or_copy, first_page
from api.state.cache import ReadCache
from api.state.chat_state import ChatState
from api.state.conversations import Conversation, Conversations
from api.wire.items import items_of
from api.wire.pages import listed, metadata_of, page_of, user_of
from api.wire.requests import object_of, tenant_of

router = APIRouter(prefix="/v1/conversations")

NO_KEY = "anonymous"
"""The tenant of those who send no API key."""

_FILTER = "metadata["


@router.post("")
async def create(request: Request) -> dict[str, Any]:
    body = await object_of(request, frozenset({"items", "metadata", "user"}))
    items, metadata = items_of(body.get("items") or []), metadata_of(body.get("metadata"))
    user = user_of(body.get("user"))
    return _shown(await _store(request).create(tenant_in_state(request), metadata, items, user))


@router.get("")
async def list_conversations(request: Request) -> dict[str, Any]:
    """Newest first; `user` and `metadata[key]=value` select."""
    query, page = request.query_params, page_of(request.query_params)
    metadata = {
        name.removeprefix(_FILTER).removesuffix("]"): value
        for name, value in query.items()
        if name.startswith(_FILTER) and name.endswith("]")
    }
    found = await _store(request).find(tenant_in_state(request), page, query.get("user"), metadata_of(metadata))
    return listed([_shown(conversation) for conversation in found], page)


@router.get("/{conversation}")
async def retrieve(request: Request, conversation: str) -> Response:
    tenant = tenant_in_state(request)

    async def ask() -> dict[str, Any]:
        return _shown(await _store(request).get(tenant, conversation))

    return await answer_or_copy(request, tenant, conversation, "conversation", ask)


@router.post("/{conversation}")
async def update(request: Request, conversation: str) -> dict[str, Any]:
    body = await object_of(request, frozenset({"metadata"}))
    metadata, tenant = metadata_of(body.get("metadata")), tenant_in_state(request)
    async with _cache(request).forgetting(tenant, conversation):
        return _shown(await _store(request).update(tenant, conversation, metadata))


@router.delete("/{conversation}")
async def delete(request: Request, conversation: str) -> dict[str, Any]:
    tenant = tenant_in_state(request)
    async with _cache(request).forgetting(tenant, conversation) as gone:
        gone += await _store(request).delete(tenant, conversation)
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.post("/{conversation}/items")
async def add_items(request: Request, conversation: str) -> dict[str, Any]:
    body = await object_of(request, frozenset({"items"}))
    added = await _store(request).add_items(tenant_in_state(request), conversation, items_of(body.get("items")))
    return {
        "object": "list",
        "data": added,
        "first_id": added[0]["id"] if added else None,
        "last_id": added[-1]["id"] if added else None,
        "has_more": False,
    }


@router.get("/{conversation}/items")
async def list_items(request: Request, conversation: str) -> Response:
    tenant, page = tenant_in_state(request), page_of(request.query_params)

    async def ask() -> dict[str, Any]:
        return listed(await _store(request).items(tenant, conversation, page), page)

    return await answer_or_copy(request, tenant, conversation, first_page(page), ask)


@router.get("/{conversation}/items/{item}")
async def retrieve_item(request: Request, conversation: str, item: str) -> dict[str, Any]:
    return await _store(request).item(tenant_in_state(request), conversation, item)


@router.delete("/{conversation}/items/{item}")
async def delete_item(request: Request, conversation: str, item: str) -> dict[str, Any]:
    tenant = tenant_in_state(request)
    async with _cache(request).forgetting(tenant, conversation) as gone:
        found, response = await _store(request).delete_item(tenant, conversation, item)
        gone += [response] if response else []
    return _shown(found)


def _store(request: Request) -> Conversations:
    """Raises StateUnavailable."""
    state: ChatState = request.app.state.chat_state
    return state.conversations


def _cache(request: Request) -> ReadCache:
    state: ChatState = request.app.state.chat_state
    return state.cache


def tenant_in_state(request: Request) -> str:
    return tenant_of(request) or NO_KEY


def _shown(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": conversation.metadata,
    }
