"""Ingress: the HTTP application, and the Serve deployment that runs it. Builds; decides nothing."""

import gc
import random
import sys

from fastapi import FastAPI, Request, Response
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException

from api.completions.store_writer import Keeper
from api.context.manager import ContextManager
from api.frontend.frontend import Frontend
from api.responses.running_turns import Turns
from api.responses.titles import Titles
from api.responses.turn import Means
from api.routes import (
    completions,
    context,
    conversations,
    feedback,
    health,
    links,
    models,
    queue,
    responses,
    stored_completions,
)
from api.routes import route_receipts as receipts_route
from api.server.capacity import Capacity, Standstill
from api.server.cluster_handle import ClusterHandle
from api.server.edge import Edge
from api.server.listener import HttpListener
from api.server.ports import ClusterPort
from api.server.receipt_log import Receipts
from api.server.request_id import RequestIds
from api.state.lifecycle import ChatState
from api.wire.errors import error_response
from cluster import metrics
from cluster.clients.scheduler_client import SchedulerPeer
from cluster.clients.worker_client import DecodePeers, Peers, PrefillPeers
from cluster.config.application import AppConfig
from cluster.config.ingress import IngressConfig
from cluster.errors import InvalidRequest, NotFound, ServingError
from cluster.messages.generation import GenerateRequest
from cluster.observability.logging import set_up_logging
from cluster.serve_context import claim_state, join_cluster, own_worker_id, scheduler_address
from router.session.fallback_placement import LastResort
from router.session.receipt import Terms
from router.session.scheduler_failover import Scheduling
from router.session.session import Session, SessionPorts

SWITCH_INTERVAL_S = 0.0005
"""After how long a thread lets another one have the interpreter. While a large body is checked in a thread, the event
loop may wait so long behind each call of the kernel. The 99th percentile of an echo beside one busy thread is 0.7 ms;
with Python's default of 5 ms it is 3 to 16 ms. Shorter costs the threads time.
"""

LIBRARIES_OF_REQUESTS = ("uvicorn", "vllm", "asyncio")
"""Loggers that write of requests too."""


def build_http_app(
    frontend: Frontend,
    cluster: ClusterPort,
    receipts: Receipts,
    state: ChatState,
    context_manager: ContextManager,
    config: IngressConfig,
) -> FastAPI:
    """The HTTP surface over a frontend, a view of the cluster and what is remembered."""
    app = FastAPI(title="Baton", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.frontend = frontend
    app.state.cluster = cluster
    app.state.receipts = receipts
    app.state.chat_state = state
    app.state.keeper = Keeper(state)
    app.state.context = context_manager
    app.state.titles = Titles(frontend, state)
    background = Capacity(config.max_background_responses, config.max_background_responses_per_tenant)
    app.state.turns = Turns(Means(frontend, context_manager, app.state.titles), state, background)
    app.state.keeps_receipts = config.keep_receipts > 0
    app.state.allow_path_header = config.allow_path_header
    app.state.keep_alive_s = config.keep_alive_s
    app.state.capacity = Capacity(config.max_ongoing_requests)
    app.state.standstill = Standstill(app.state.capacity)
    app.state.structured_output = config.structured_output
    app.state.max_sequences = min(config.max_sequences_per_request, config.max_ongoing_requests)
    app.add_middleware(Edge, config, app.state.capacity)
    remembering = (conversations, context, responses, stored_completions, feedback)
    for routes in (completions, *remembering, models, health, links, queue, receipts_route):
        app.include_router(routes.router)
    app.add_exception_handler(ServingError, _on_serving_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    return app


class Ingress:
    """One ingress replica."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: AppConfig, scheduler: DeploymentHandle, prefill: DeploymentHandle, decode: DeploymentHandle
    ) -> None:
        set_up_logging()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        join_cluster()
        self._config = config.ingress
        scheduler_peer = SchedulerPeer(lambda: scheduler_address(scheduler))
        peers = Peers(scheduler_peer, config.ingress.max_unread_tokens)
        receipts = Receipts(config.ingress.keep_receipts)
        self._scheduling = Scheduling(scheduler_peer, peers, LastResort(config.slo))
        self._ports = SessionPorts(
            scheduler=self._scheduling,
            prefill=PrefillPeers(peers),
            decode=DecodePeers(peers),
            observer=receipts,
        )
        cluster = ClusterHandle(
            self._scheduling, scheduler_peer, [scheduler, prefill, decode], config.ingress.metrics_max_age_s
        )
        frontend = self._frontend = await Frontend.start(config, self._start_session)
        set_up_logging([RequestIds()], LIBRARIES_OF_REQUESTS)  # vLLM has configured its own logger by now
        self._state = ChatState(config.state)
        if self._state.local is not None:
            claim_state(is_new=self._state.local.is_new)
        self._state.start()
        self._context = ContextManager(
            frontend, lambda: self._state.stores.context, config.context, lambda: self._state.stores.search
        )
        http_app = build_http_app(frontend, cluster, receipts, self._state, self._context, config.ingress)
        gc.collect()
        gc.freeze()  # what is loaded by now lives as long as the process: collections need not walk it
        self._turns: Turns = http_app.state.turns
        self._keeper: Keeper = http_app.state.keeper
        self._titles: Titles = http_app.state.titles
        self._listener = await HttpListener.start(http_app, config.ingress)

    async def check_health(self) -> None:
        """Raises when this replica no longer listens, so that Serve replaces it."""
        self._listener.check_health()

    async def scrape(self) -> metrics.Scrape:
        return metrics.scrape("ingress", own_worker_id())

    async def __del__(self) -> None:
        if "_listener" in self.__dict__:  # absent when the replica did not start
            await self._listener.close()
            await self._turns.drained()
            await self._keeper.drained()
            await self._titles.close()
            await self._context.close()
            self._scheduling.close()
            await self._frontend.close()
            await self._state.close()

    def _start_session(self, request: GenerateRequest, terms: Terms) -> Session:
        return Session(
            request,
            self._ports,
            terms,
            first_token_timeout_s=self._config.first_token_timeout_s,
            verifies=random.random() < self._config.verified_share,
        )


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
