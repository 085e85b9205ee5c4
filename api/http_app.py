"""The FastAPI application of an ingress replica: all routes, and the services that the routes use."""

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from api.completions.store_writer import CompletionStoreWriter
from api.context.manager import ContextManager
from api.edge.capacity import Capacity, Standstill
from api.edge.edge import Edge
from api.edge.error_response import error_response
from api.frontend.frontend import Frontend
from api.responses.running_turns import RunningTurns
from api.responses.titles import Titles
from api.responses.turn_generation import TurnServices
from api.routes import (
    cluster_views,
    completions,
    context,
    conversations,
    feedback,
    health,
    models,
    responses,
    safety,
    stored_completions,
)
from api.routes import route_receipts as receipts_route
from api.routes.services import IngressServices
from api.server.cluster_port import ClusterPort
from api.server.receipt_log import ReceiptLog
from api.state.lifecycle import ChatState
from cluster.config.ingress import IngressConfig
from cluster.errors import InvalidRequest, NotFound, ServingError


def build_http_app(
    frontend: Frontend,
    cluster: ClusterPort,
    receipts: ReceiptLog,
    state: ChatState,
    context_manager: ContextManager,
    config: IngressConfig,
) -> FastAPI:
    """The application with all its routes, the edge (api/edge/edge.py) around the routes, and handlers of errors."""
    app = FastAPI(title="Baton", docs_url=None, redoc_url=None, openapi_url=None)
    capacity = Capacity(config.max_ongoing_requests)
    background = Capacity(config.max_background_responses, config.max_background_responses_per_tenant)
    titles = Titles(frontend, state)
    app.state.services = IngressServices(
        config=config,
        frontend=frontend,
        cluster=cluster,
        receipts=receipts,
        chat_state=state,
        completion_writer=CompletionStoreWriter(state),
        context=context_manager,
        titles=titles,
        turns=RunningTurns(TurnServices(frontend, context_manager, titles), state, background),
        capacity=capacity,
        standstill=Standstill(capacity),
    )
    app.add_middleware(Edge, config, capacity)
    remembering = (conversations, context, responses, stored_completions, feedback, safety)
    for routes in (completions, *remembering, models, health, cluster_views, receipts_route):
        app.include_router(routes.router)
    app.add_exception_handler(ServingError, _on_serving_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    return app


async def _on_serving_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == NotFound.http_status:
        return error_response(
            NotFound(f"unknown request URL: {request.method} {request.url.path}", None, "unknown_url")
        )
    refused = InvalidRequest(f"{error.detail}: {request.method} {request.url.path}", None, "method_not_allowed")
    refused.http_status = error.status_code
    response = error_response(refused)
    response.headers.update(error.headers or {})
    return response
