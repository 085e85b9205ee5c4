"""Ingress: the Serve deployment that runs the HTTP application. It builds the parts of a replica, and nothing else."""

import asyncio
import gc
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ray.serve.handle import DeploymentHandle

from api.context.manager import ContextManager
from api.edge.request_id import RequestIds
from api.frontend.frontend import Frontend
from api.http_app import build_http_app
from api.routes.services import IngressServices
from api.safety.audit.audit_writer import AuditWriter
from api.server.cluster_handle import ClusterHandle
from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from api.server.receipt_log import ReceiptLog
from api.server.scheduling import Scheduling
from api.state.lifecycle import ChatState
from cluster import metrics
from cluster.clients.worker_client import DecodeClient, PrefillClient
from cluster.config.application import AppConfig
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import CellName
from cluster.observability.logging import set_up_logging
from cluster.serve_context import claim_state, join_cluster, own_service, own_worker_id
from router.session.ports import SessionPorts
from router.session.receipt import Terms
from router.session.session import Session

SWITCH_INTERVAL_S = 0.0005
"""Time after which a thread gives the interpreter to a waiting thread, in seconds (`sys.setswitchinterval`). While a
large body is checked in a thread, the event loop may wait that long after each system call. The 99th percentile of an
echo beside one busy thread is 0.7 ms; with Python's default of 5 ms it is 3 to 16 ms. A lower value costs the threads
time; a higher value delays the event loop.
"""
WRITE_PATIENCE_S = 1.5
"""Time that a replica which ends gives its last turns to be written, then its completions, and then its safety events,
in seconds. Three times this is less than STORE_S (cluster/config/ingress.py). Longer delays the end while PostgreSQL is
away, until Serve kills the replica; shorter loses more of all three then.
"""
LIBRARIES_OF_REQUESTS = ("uvicorn", "vllm", "asyncio")
"""Loggers of libraries whose lines get the id of the request."""


class Ingress:
    """One ingress replica."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: AppConfig, cells: Mapping[CellName, Sequence[DeploymentHandle]]
    ) -> None:
        """`cells`: the deployments of each cell."""
        set_up_logging()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        join_cluster(config.network.tls)
        self._config = config.ingress
        receipts = ReceiptLog(config.ingress.keep_receipts)
        scheduling = self._scheduling = Scheduling(config)
        self._ports = SessionPorts(
            scheduler=scheduling.port,
            prefill=PrefillClient(scheduling.workers),
            decode=DecodeClient(scheduling.workers),
            observer=receipts,
        )
        cluster = ClusterHandle(scheduling.readiness, scheduling.views, cells, config.ingress.metrics_max_age_s)
        self._state = ChatState(config.state)
        self._audit = AuditWriter(self._state)
        frontend = self._frontend = await Frontend.start(config, self._start_session, self._audit)
        set_up_logging([RequestIds()], LIBRARIES_OF_REQUESTS)  # after vLLM has configured its own logger
        if self._state.local is not None:
            claim_state(is_new=self._state.local.is_new)
        self._state.start()
        self._audit.start()
        self._context = ContextManager(
            frontend, lambda: self._state.stores.context, config.context, lambda: self._state.stores.search
        )
        http_app = build_http_app(frontend, cluster, receipts, self._state, self._context, config.ingress)
        gc.collect()
        gc.freeze()  # the objects of now live as long as the process: the garbage collector need not walk them
        self._services: IngressServices = http_app.state.services
        self._listener = await HttpListener.start(http_app, Gatekeeper(config.ingress), own_service())

    async def check_health(self) -> None:
        """Raise RuntimeError if the listener has ended, so that Serve replaces the replica."""
        self._listener.check_health()

    async def scrape(self) -> metrics.Scrape:
        self._scheduling.export()
        return metrics.scrape("ingress", own_worker_id())

    async def __del__(self) -> None:
        if "_listener" in self.__dict__:  # the attribute is absent if the replica did not start
            loop = asyncio.get_running_loop()
            until = loop.time() + self._config.patience_s
            await self._listener.close()
            left_s = max(0.0, until - loop.time())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._services.turns.drained(left_s), left_s + WRITE_PATIENCE_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._services.completion_writer.drained(), WRITE_PATIENCE_S)
            await self._services.titles.close()
            await self._context.close()
            self._scheduling.close()
            await self._frontend.close()
            await self._audit.drained(WRITE_PATIENCE_S)
            await self._audit.close()
            await self._state.close()

    def _start_session(self, request: GenerateRequest, terms: Terms) -> Session:
        return Session(
            request,
            self._ports,
            terms,
            first_token_timeout_s=self._config.first_token_timeout_s,
            verifies=random.random() < self._config.verified_share,
        )
