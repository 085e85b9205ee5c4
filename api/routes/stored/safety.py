"""What the screening finds in texts (OpenAI's /v1/moderations), and /v1/safety: the safety events of a tenant, and
appeals against them. OpenAI lacks the latter.

A person decides on appeals: `baton audit decide` (cluster/cli/audit.py).
"""

import logging
from typing import Any
from uuid import uuid4

import msgspec
from fastapi import APIRouter, Request

from api.identity.rights import Right
from api.identity.route_rights import needs
from api.identity.tenants import tenant_in_state
from api.routes.counted_requests import counted
from api.routes.services import services_of
from api.safety.audit.event import Direction
from api.safety.review import Appealed
from api.safety.verdict import StageVerdict
from api.server.json_body import object_of
from api.state.postgres.audit_rows import StoredAudit
from api.state.postgres.stores.appeals import Appeal
from api.state.postgres.stores.audit import AuditFilter
from api.state.stores import Stores
from api.wire.pages import Part, listed, page_of
from api.wire.safety import moderations
from api.wire.safety.appeals import KNOWN, appeal_of, filters_of
from api.wire.safety.moderation_results import result_of
from cluster.errors import ServingError

logger = logging.getLogger("baton.safety")

router = APIRouter(prefix="/v1")


@router.post("/moderations")
@needs(Right.INFERENCE)
@counted
async def moderate(request: Request) -> dict[str, Any]:
    """Tell what the screening finds in texts. `model` is not looked at: there is one screening. The answer names the
    version of it.
    """
    asked = moderations.moderation_request_of(await object_of(request, moderations.KNOWN))
    version, scored = await services_of(request).frontend.moderated(tenant_in_state(request), asked.texts)
    results = [result_of(one.scores, one.flagged, asked.further) for one in scored]
    return moderations.moderations(uuid4().hex, version, results)


@router.get("/safety/events")
@needs(Right.SAFETY_REVIEW)
async def list_events(request: Request) -> dict[str, Any]:
    """List safety events, the newest first. `action`, `direction`, `category` and `request_id` are filters."""
    query, page = AuditFilter(**filters_of(request.query_params)), page_of(request.query_params)
    found = await _stores(request).audit.find(tenant_in_state(request), page, query)
    return listed(Part([_event(stored) for stored in found.data], found.has_more))


@router.get("/safety/events/{event}")
@needs(Right.SAFETY_REVIEW)
async def retrieve_event(request: Request, event: str) -> dict[str, Any]:
    """Answer with a safety event."""
    return _event(await _stores(request).audit.get(tenant_in_state(request), event))


@router.post("/safety/appeals")
@needs(Right.SAFETY_REVIEW)
@counted
async def create_appeal(request: Request) -> dict[str, Any]:
    """Appeal against a safety event. The stages look at the text once more for whoever decides. An appeal counts also
    if that fails.
    """
    asked = appeal_of(await object_of(request, KNOWN))
    tenant, stores = tenant_in_state(request), _stores(request)
    appeal = await stores.appeals.open(tenant, asked.event, asked.reason)
    try:
        appealed = _appealed(await stores.audit.get(tenant, asked.event))
        review = await services_of(request).frontend.reviewed(tenant, appealed)
        await stores.appeals.add_review(tenant, appeal.id, msgspec.json.encode(review))
    except ServingError as error:
        logger.warning("the appeal %s is kept without a review: %s", appeal.id, error)
    except Exception:  # of a stage, which may be a plug-in
        logger.exception("the appeal %s is kept without a review", appeal.id)
    return _appeal(appeal)


@router.get("/safety/appeals")
@needs(Right.SAFETY_REVIEW)
async def list_appeals(request: Request) -> dict[str, Any]:
    """List appeals, the newest first."""
    page = page_of(request.query_params)
    found = await _stores(request).appeals.find(tenant_in_state(request), page)
    return listed(Part([_appeal(appeal) for appeal in found.data], found.has_more))


@router.get("/safety/appeals/{appeal}")
@needs(Right.SAFETY_REVIEW)
async def retrieve_appeal(request: Request, appeal: str) -> dict[str, Any]:
    """Answer with an appeal."""
    return _appeal(await _stores(request).appeals.get(tenant_in_state(request), appeal))


def _stores(request: Request) -> Stores:
    """Raises StateUnavailable."""
    return services_of(request).chat_state.stores


def _appealed(event: StoredAudit) -> Appealed:
    """Raises ServingError: the key of the text is destroyed."""
    text = event.evidence()
    verdicts = msgspec.json.decode(event.row.verdicts, type=list[StageVerdict])
    is_answer = event.row.direction == Direction.OUTPUT
    shown = None if text is None else text.decode(errors="replace")
    return Appealed(is_answer, event.row.categories, verdicts, shown)


def _event(stored: StoredAudit) -> dict[str, Any]:
    row = stored.row
    return {
        "id": row.id,
        "object": "safety.event",
        "created_at": int(row.at),
        "request_id": row.request_id,
        "direction": row.direction,
        "action": row.action,
        "categories": list(row.categories),
        "policy_version": row.policy_version,
        "verdicts": msgspec.json.decode(row.verdicts),
    }


def _appeal(appeal: Appeal) -> dict[str, Any]:
    return {
        "id": appeal.id,
        "object": "safety.appeal",
        "created_at": int(appeal.created_at.timestamp()),
        "event_id": appeal.event,
        "reason": appeal.reason,
        "status": appeal.status,
        "note": appeal.note,
        "decided_at": None if appeal.decided_at is None else int(appeal.decided_at.timestamp()),
    }
