"""Ingress: the Serve deployment that runs the HTTP application. Builds; decides nothing."""

import gc
import random
import sys

from ray.serve.handle import DeploymentHandle

from api.context.manager import ContextManager
from api.edge.request_id import RequestIds
from api.frontend.frontend import Frontend
from api.http_app import build_http_app
from api.routes.services import IngressServices
from api.server.cluster_handle import ClusterHandle
from api.server.listener import HttpListener
from api.server.receipt_log import ReceiptLog
from api.state.lifecycle import ChatState
from cluster import metrics
from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.worker_client import DecodeClient, PrefillClient, WorkerConnections
from cluster.config.application import AppConfig
from cluster.messages.generation import GenerateRequest
from cluster.observability.logging import set_up_logging
from cluster.serve_context import claim_state, join_cluster, own_worker_id, scheduler_address
from router.session.fallback_placement import FallbackPlacement
from router.session.ports import SessionPorts
from router.session.receipt import Terms
from router.session.scheduler_failover import SchedulerFailover
from router.session.session import Session

SWITCH_INTERVAL_S = 0.0005
"""After how long a thread lets another one have the interpreter. While a large body is checked in a thread, the event
loop may wait so long behind each call of the kernel. The 99th percentile of an echo beside one busy thread is 0.7 ms;
with Python's default of 5 ms it is 3 to 16 ms. Shorter costs the threads time.
"""
LIBRARIES_OF_REQUESTS = ("uvicorn", "vllm", "asyncio")
"""Loggers that write of requests too."""


class Ingress:
    """One ingress replica."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: AppConfig, scheduler: DeploymentHandle, prefill: DeploymentHandle, decode: DeploymentHandle
    ) -> None:
        set_up_logging()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        join_cluster()
        self._config = config.ingress
        scheduler_peer = SchedulerClient(lambda: scheduler_address(scheduler))
        peers = WorkerConnections(scheduler_peer, config.ingress.max_unread_tokens)
        receipts = ReceiptLog(config.ingress.keep_receipts)
        self._scheduling = SchedulerFailover(scheduler_peer, peers, FallbackPlacement(config.slo))
        self._ports = SessionPorts(
            scheduler=self._scheduling,
            prefill=PrefillClient(peers),
            decode=DecodeClient(peers),
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
        self._services: IngressServices = http_app.state.services
        self._listener = await HttpListener.start(http_app, config.ingress)

    async def check_health(self) -> None:
        """Raises when this replica no longer listens, so that Serve replaces it."""
        self._listener.check_health()

    async def scrape(self) -> metrics.Scrape:
        return metrics.scrape("ingress", own_worker_id())

    async def __del__(self) -> None:
        if "_listener" in self.__dict__:  # absent when the replica did not start
            await self._listener.close()
            await self._services.turns.drained()
            await self._services.keeper.drained()
            await self._services.titles.close()
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
