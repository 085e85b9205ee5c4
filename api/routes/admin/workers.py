"""POST /admin/workers/{worker}: an operator drains a worker, or undoes that (`baton drain`)."""

from typing import Any

import msgspec
from fastapi import APIRouter, Request

from api.routes.admin.requests import accounts_of, actor_of, body_of
from api.routes.services import services_of
from cluster.messages.ids import WorkerId
from cluster.messages.operations import DrainAsk

router = APIRouter(prefix="/admin")


class WorkerBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker becomes."""

    draining: bool
    force: bool = False
    """Whether the last worker of its pool may be drained."""


@router.post("/workers/{worker}")
async def change(request: Request, worker: str) -> dict[str, Any]:
    """What changes nothing is not logged."""
    body, actor = await body_of(request, WorkerBody), actor_of(request)
    ask = DrainAsk(worker=WorkerId(worker), drains=body.draining, force=body.force)
    action = "worker.drain" if body.draining else "worker.undrain"

    async def drains() -> bool:
        answer = await services_of(request).cluster.drain(ask)
        return answer.was_draining != body.draining

    is_changed = await accounts_of(request).service.logged(actor, action, worker, drains)
    return {"id": worker, "object": "worker", "draining": body.draining, "changed": is_changed}
