"""/v1/feedback: the opinions of users about stored responses and chat completions. OpenAI lacks this resource."""

from typing import Any

from fastapi import APIRouter, Request

from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import tenant_in_state
from api.routes.counted_requests import counted
from api.routes.services import services_of
from api.server.json_body import object_of
from api.state.lifecycle import ChatState
from api.state.postgres.stores.feedback import Feedback, FeedbackStore
from api.wire.feedback import KNOWN, opinion_of, rating_of
from api.wire.pages import Part, listed, page_of

router = APIRouter(prefix="/v1/feedback")


@router.post("")
@needs(Right.STATE_WRITE)
@counted
async def create(request: Request) -> dict[str, Any]:
    """Store the opinion of a user about an answer. It replaces the user's earlier one."""
    opinion = opinion_of(await object_of(request, KNOWN))
    return _shown(await _store(request).put(tenant_in_state(request), opinion))


@router.get("")
@needs(Right.STATE_READ)
async def list_feedback(request: Request) -> dict[str, Any]:
    """List feedback, the newest first. `response_id` and `rating` are filters."""
    query, page = request.query_params, page_of(request.query_params)
    rating = rating_of(query["rating"]) if "rating" in query else None
    found = await _store(request).find(tenant_in_state(request), page, query.get("response_id"), rating)
    return listed(Part([_shown(feedback) for feedback in found.data], found.has_more))


@router.delete("/{feedback}")
@needs(Right.STATE_WRITE)
async def delete(request: Request, feedback: str) -> dict[str, Any]:
    """Delete an opinion."""
    await _store(request).delete(tenant_in_state(request), feedback)
    return {"id": feedback, "object": "feedback.deleted", "deleted": True}


def _store(request: Request) -> FeedbackStore:
    """The store of feedback. Raises StateUnavailable."""
    state: ChatState = services_of(request).chat_state
    return state.stores.feedback


def _shown(feedback: Feedback) -> dict[str, Any]:
    opinion = feedback.opinion
    return {
        "id": feedback.id,
        "object": "feedback",
        "created_at": int(feedback.created_at.timestamp()),
        "response_id": opinion.subject,
        "item_id": opinion.item,
        "user": opinion.end_user,
        "rating": opinion.rating,
        "labels": opinion.labels,
        "comment": opinion.comment,
    }
