"""The quality probe (docs/quality.md). Any ingress replica answers, whichever one probes.

- GET /baton/quality: the workers with their scores, and the reference. `baton quality` prints this table.
- GET /baton/quality/reference: the prompts and the reference, for a file.
- POST /baton/quality/run: probe all workers now.
- POST /baton/quality/learn: forget the reference, and learn another one now.
- POST /baton/quality/release/{worker}: end the quarantine of a worker.
"""

import msgspec
from fastapi import APIRouter, Request, Response

from api.quality.board import CommandKind, QualityView
from api.quality.probe_set import written
from api.quality.prober import QualityProber
from cluster.errors import NotFound
from cluster.messages.ids import WorkerId

router = APIRouter(prefix="/baton/quality")


@router.get("")
async def quality(request: Request) -> Response:
    prober: QualityProber | None = request.app.state.quality
    return _json(QualityView(enabled=False) if prober is None else await prober.view())


@router.get("/reference")
async def reference(request: Request) -> Response:
    return Response(written(await _prober(request).reference()), media_type="application/json")


@router.post("/run")
async def run(request: Request) -> Response:
    return _json({"id": await _prober(request).command(CommandKind.RUN)})


@router.post("/learn")
async def learn(request: Request) -> Response:
    return _json({"id": await _prober(request).command(CommandKind.LEARN)})


@router.post("/release/{worker}")
async def release(request: Request, worker: str) -> Response:
    return _json({"id": await _prober(request).command(CommandKind.RELEASE, WorkerId(worker))})


def _prober(request: Request) -> QualityProber:
    prober: QualityProber | None = request.app.state.quality
    if prober is None:
        raise NotFound("this service has no quality probe", None, "probe_off")
    return prober


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
