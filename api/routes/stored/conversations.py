"""/v1/conversations: OpenAI's conversations and their items, and a list of conversations, which OpenAI lacks."""

from typing import Any

from fastapi import APIRouter, Request, Response

from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import tenant_in_state
from api.routes.counted_requests import counted, counting
from api.routes.services import services_of
from api.routes.stale_reads import answer_or_copy, first_page
from api.server.json_body import checked, object_of
from api.state.lifecycle import ChatState
from api.state.postgres.stores.conversations import Conversation, Conversations
from api.state.postgres.stores.search import Match
from api.state.redis.read_cache import ReadCache
from api.wire.items import items_of
from api.wire.pages import Part, listed, metadata_in, metadata_of, page_of, title_of, user_of
from cluster.errors import InvalidRequest

router = APIRouter(prefix="/v1/conversations")

CREATED = frozenset({"items", "metadata", "title", "user"})
UPDATED = frozenset({"metadata", "title"})
ADDED = frozenset({"items"})


@router.post("")
@needs(Right.STATE_WRITE)
@counted
async def create(request: Request) -> dict[str, Any]:
    """Create a conversation, with items or without."""
    body = await object_of(request, CREATED)
    given, metadata = body.get("items"), metadata_of(body.get("metadata"))
    items = [] if given is None else await checked(request, given, lambda: items_of(given))
    user, title = user_of(body.get("user")), title_of(body.get("title"))
    return _shown(await _store(request).create(tenant_in_state(request), metadata, items, user, title))


@router.get("")
@needs(Right.STATE_READ)
async def list_conversations(request: Request) -> dict[str, Any]:
    """List conversations, the newest first. `user` and `metadata[key]=value` are filters. With `query`, list the
    conversations that match the query, the best first.
    """
    query, page = request.query_params, page_of(request.query_params)
    tenant, user, metadata = tenant_in_state(request), query.get("user"), metadata_in(query)
    if "query" not in query:
        found = await _store(request).find(tenant, page, user, metadata)
        shown = [_shown(conversation) for conversation in found.part.data]
        return listed(Part(shown, found.part.has_more), found.cursor)
    if "order" in query:
        raise InvalidRequest(
            "order cannot be set together with query: the best matches come first", "order", "invalid_value"
        )
    async with counting(request):
        matches = await _state(request).stores.search.find(tenant, query["query"], page, user, metadata)
    return listed(Part([_shown_match(match) for match in matches.part.data], matches.part.has_more), matches.cursor)


@router.get("/{conversation}")
@needs(Right.STATE_READ)
async def retrieve(request: Request, conversation: str) -> Response:
    """Answer with a conversation."""
    tenant = tenant_in_state(request)

    async def ask() -> dict[str, Any]:
        return _shown(await _store(request).get(tenant, conversation))

    return await answer_or_copy(request, tenant, conversation, "conversation", ask)


@router.post("/{conversation}")
@needs(Right.STATE_READ, Right.STATE_WRITE)
@counted
async def update(request: Request, conversation: str) -> dict[str, Any]:
    """Change the metadata or the title of a conversation. A field that the body lacks stays as it is; the title null
    removes the title.
    """
    body, tenant = await object_of(request, UPDATED), tenant_in_state(request)
    metadata = metadata_of(body["metadata"]) if "metadata" in body else None
    title = title_of(body["title"]) if "title" in body else None
    async with _cache(request).forgetting(tenant, conversation):
        return _shown(await _store(request).update(tenant, conversation, metadata, title))


@router.delete("/{conversation}")
@needs(Right.STATE_WRITE)
async def delete(request: Request, conversation: str) -> dict[str, Any]:
    """Delete a conversation with its items."""
    tenant = tenant_in_state(request)
    async with _cache(request).forgetting(tenant, conversation) as gone:
        await _store(request).delete(tenant, conversation, gone)
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.post("/{conversation}/items")
@needs(Right.STATE_WRITE)
@counted
async def add_items(request: Request, conversation: str) -> dict[str, Any]:
    """Add items to the end of a conversation."""
    body = await object_of(request, ADDED)
    items = await checked(request, body.get("items"), lambda: items_of(body.get("items")))
    added = await _store(request).add_items(tenant_in_state(request), conversation, items)
    return {
        "object": "list",
        "data": added,
        "first_id": added[0]["id"] if added else None,
        "last_id": added[-1]["id"] if added else None,
        "has_more": False,
    }


@router.get("/{conversation}/items")
@needs(Right.STATE_READ)
async def list_items(request: Request, conversation: str) -> Response:
    """List the items of a conversation, the newest first."""
    tenant, page = tenant_in_state(request), page_of(request.query_params)

    async def ask() -> dict[str, Any]:
        return listed(await _store(request).items(tenant, conversation, page))

    return await answer_or_copy(request, tenant, conversation, first_page(page), ask)


@router.get("/{conversation}/items/{item}")
@needs(Right.STATE_READ)
async def retrieve_item(request: Request, conversation: str, item: str) -> dict[str, Any]:
    """Answer with an item of a conversation."""
    return await _store(request).item(tenant_in_state(request), conversation, item)


@router.delete("/{conversation}/items/{item}")
@needs(Right.STATE_READ, Right.STATE_WRITE)
async def delete_item(request: Request, conversation: str, item: str) -> dict[str, Any]:
    """Delete an item of a conversation, and answer with the conversation."""
    tenant = tenant_in_state(request)
    async with _cache(request).forgetting(tenant, conversation) as changed:
        return _shown(await _store(request).delete_item(tenant, conversation, item, changed))


def _store(request: Request) -> Conversations:
    """The store of conversations. Raises StateUnavailable."""
    return _state(request).stores.conversations


def _state(request: Request) -> ChatState:
    state: ChatState = services_of(request).chat_state
    return state


def _cache(request: Request) -> ReadCache:
    return _state(request).cache


def _shown(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": conversation.metadata,
        "title": conversation.title,
    }


def _shown_match(match: Match) -> dict[str, Any]:
    return {**_shown(match.conversation), "match": {"item_id": match.item, "excerpt": match.excerpt}}
