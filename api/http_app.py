"""The FastAPI applications of an ingress replica: that of the public port has the routes of clients, and that of the
admin port has those of operators. Both use the same services.
"""

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from api.charging.charging import Charging
from api.completions.store_writer import CompletionStoreWriter
from api.context.manager import ContextManager
from api.edge.byte_budget import ByteBudget
from api.edge.capacity import Capacity, Standstill
from api.edge.edge import Edge
from api.edge.error_response import error_response
from api.frontend.frontend import Frontend
from api.identity.access import Access, AccessPort
from api.quality.prober import QualityProber
from api.responses.chain_memory import ChainSpace
from api.responses.running_turns import RunningTurns
from api.responses.titles import Titles
from api.responses.turn_generation import TurnServices
from api.routes import (
    completions,
    context,
    health,
    messages,
    models,
    response_socket,
    responses,
    usage,
)
from api.routes.admin import (
    chat,
    cluster_views,
    keys,
    live,
    metrics_page,
    projects,
    quality_probe,
    route_receipts,
    tenants,
    usage_of_all,
    workers,
)
from api.routes.admin.web_page import page_router
from api.routes.services import IngressServices
from api.routes.stored import conversations, feedback, safety, stored_completions
from api.routes.vllm import tokenize, version
from api.routes.vllm.documentation import Documentation
from api.server.cluster_port import ClusterPort
from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from api.server.receipt_log import ReceiptLog
from api.state.lifecycle import ChatState
from api.web.live import LiveDocuments
from api.web.page_files import PageFiles
from cluster.config.ingress import IngressConfig
from cluster.config.tenants.admin import MOST_CONNECTIONS, AdminConfig
from cluster.errors import InvalidRequest, NotFound, ServingError
from cluster.messages.operations import ServiceSettings


def build_http_app(
    frontend: Frontend,
    cluster: ClusterPort,
    receipts: ReceiptLog,
    state: ChatState,
    context_manager: ContextManager,
    config: IngressConfig,
    access: Access,
    charging: Charging | None = None,
) -> FastAPI:
    """The application of the public port."""
    capacity = Capacity(config.max_ongoing_requests)
    background = Capacity(config.max_background_responses, config.max_background_responses_per_tenant)
    titles = Titles(frontend, state)
    services = IngressServices(
        config=config,
        frontend=frontend,
        cluster=cluster,
        receipts=receipts,
        chat_state=state,
        charging=charging,
        completion_writer=CompletionStoreWriter(state),
        context=context_manager,
        titles=titles,
        turns=RunningTurns(TurnServices(frontend, context_manager, titles), state, background),
        capacity=capacity,
        standstill=Standstill(capacity),
        body_budget=ByteBudget(config.max_bodies_bytes),
        chain_space=ChainSpace(config.websockets),
    )
    remembering = (conversations, context, response_socket, responses, stored_completions, feedback, safety)
    of_vllm = (tokenize, version)
    routers = [routes.router for routes in (completions, messages, *remembering, models, usage, *of_vllm, health)]
    described = [Documentation().router] if config.docs else []
    return _app([health.liveness, *routers, *described], services, config, capacity, access, services.body_budget)


def gatekeeper_of(services: IngressServices, config: IngressConfig) -> Gatekeeper:
    """The limits of the listener of the public port."""
    return Gatekeeper(config, [response_socket.PATH], services.body_budget)


async def listening(app: FastAPI, config: IngressConfig, service: str) -> HttpListener:
    """The listener of the public port. Raises OSError if the address cannot be bound."""
    return await HttpListener.start(app, gatekeeper_of(app.state.services, config), service)


def build_admin_app(
    services: IngressServices,
    config: AdminConfig,
    access: AccessPort,
    page: PageFiles,
    live_documents: LiveDocuments,
    settings: ServiceSettings | None = None,
    quality: QualityProber | None = None,
) -> FastAPI:
    """The application of the admin port. `services`: of the public one. `settings`: what operators are told.
    `quality`: None where nothing is probed.
    """
    of_operators = (
        metrics_page,
        cluster_views,
        live,
        chat,
        route_receipts,
        quality_probe,
        workers,
        tenants,
        projects,
        keys,
        usage_of_all,
    )
    routers = [health.liveness, page_router(page), *(routes.router for routes in of_operators)]
    # One request for each connection: the limit of connections refuses before this one would
    capacity = Capacity(MOST_CONNECTIONS)
    app = _app(routers, services, config.as_listener(services.config), capacity, access)
    app.state.quality = quality
    app.state.live = live_documents
    app.state.settings = settings or ServiceSettings()
    return app


def _app(
    routers: list[APIRouter],
    services: IngressServices,
    config: IngressConfig,
    capacity: Capacity,
    access: AccessPort,
    budget: ByteBudget | None = None,
) -> FastAPI:
    """An application with these routes, the edge (api/edge/edge.py) around them, and handlers of errors. `budget`: the
    memory for bodies, if others take from it, too.
    """
    app = FastAPI(title="Baton", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = services
    app.add_middleware(Edge, config, capacity, access, is_traced=services.receipts.is_traced, budget=budget)
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(ServingError, _on_serving_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    return app


async def _on_serving_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return error_response(error, request.scope)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == NotFound.http_status:
        unknown = NotFound(f"unknown request URL: {request.method} {request.url.path}", None, "unknown_url")
        return error_response(unknown, request.scope)
    refused = InvalidRequest(f"{error.detail}: {request.method} {request.url.path}", None, "method_not_allowed")
    refused.http_status = error.status_code
    response = error_response(refused, request.scope)
    response.headers.update(error.headers or {})
    return response
