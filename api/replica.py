"""One ingress replica: it builds the parts of the HTTP application, starts them and ends them, and nothing else."""

import asyncio
import gc
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from api.charging.accounting import Accounting
from api.context.manager import ContextManager
from api.edge.request_id import RequestIds
from api.frontend.frontend import Frontend
from api.http_app import build_admin_app, build_http_app, listening
from api.identity.access import Access
from api.identity.admin.admin_access import AdminAccess
from api.identity.admin.admin_key import established_admin_key
from api.identity.authentication import Authentication
from api.identity.oidc import OidcTokens
from api.quality.asking import Asker
from api.quality.probe_set import MAX_FILE_BYTES, ProbeSet, parsed
from api.quality.prober import ProbePorts, QualityProber
from api.quality.references import REFERENCE_FOLDER, ReferenceStore
from api.quality.replicas import ProbeReplicas
from api.routes.services import IngressServices
from api.safety.audit.audit_writer import AuditWriter
from api.server.cluster_handle import ClusterHandle
from api.server.kept_receipts import KeptReceipt
from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from api.server.receipt_log import ReceiptLog
from api.server.scheduling import Scheduling
from api.state.lifecycle import ChatState
from api.tracing.trace_exporter import TraceExporter
from api.web.live import LiveDocuments
from api.web.page_files import PageFiles
from cluster.clients.worker_client import DecodeClient, PrefillClient
from cluster.config.application import AppConfig
from cluster.config.tenants.identity import IdentityConfig
from cluster.ending import end_tasks
from cluster.event_loop import watch_event_loop
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import CellName, Pool
from cluster.messages.operations import ServiceSettings, TierSettings
from cluster.metrics.page import Scrape, scrape
from cluster.observability.logging import set_up_logging
from cluster.repository import REPO_ROOT, own_version
from cluster.serve_context import Deployment, claim_state, join_cluster, own_service, own_worker_id
from router.session.ports import SessionPorts
from router.session.receipt import RequestObserver, Terms
from router.session.session import Session

SWITCH_INTERVAL_S = 0.0005
"""Time after which a thread gives the interpreter to a waiting thread, in seconds (`sys.setswitchinterval`). While a
large body is checked in a thread, the event loop may wait that long after each system call. The 99th percentile of an
echo beside one busy thread is 0.7 ms; with Python's default of 5 ms it is 3 to 16 ms. A lower value costs the threads
time; a higher value delays the event loop.
"""
WRITE_PATIENCE_S = 1.5
"""Time that a replica which ends gives its last turns to be written, then its completions, with its traces, and then
its safety events, in seconds. Three times this is less than STORE_S (cluster/config/ingress.py). Longer delays the end
while PostgreSQL is away, until Serve kills the replica; shorter loses more of all then.
"""
ACCOUNTS_WITHIN_S = 10.0
"""Time that a replica which requires credentials waits for PostgreSQL before it listens, in seconds. Before that it
would refuse all keys with a 503. Shorter refuses more requests during an update; longer delays `GET /healthz` while
PostgreSQL is away.
"""
LIBRARIES_OF_REQUESTS = ("uvicorn", "vllm", "asyncio")
"""Loggers of libraries whose lines get the id of the request."""


class IngressReplica:
    """What a process of the Serve deployment `Ingress` runs (api/deployment.py)."""

    def __init__(self, config: AppConfig, cells: Mapping[CellName, Sequence[Deployment]]) -> None:
        """`cells`: the deployments of each cell."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        join_cluster(config.network.tls)
        self._config = config
        self._traces = _exporter(config)
        receipts = self._receipts = ReceiptLog(config.ingress.keep_receipts, self._traces)
        scheduling = self._scheduling = Scheduling(config)
        self._ports = SessionPorts(
            scheduler=scheduling.port,
            prefill=PrefillClient(scheduling.workers),
            decode=DecodeClient(scheduling.workers),
            observer=receipts,
            slo=config.slo,
        )
        self._cluster = ClusterHandle(
            scheduling.readiness,
            scheduling.views,
            cells,
            config.ingress.metrics_max_age_s,
            config.model_name,
            receipts.kept,
        )
        self._state = ChatState(config.state, serves=True, publishes_usage=config.metering.publishes)
        self._authentication = self._authenticating(config.identity)
        self._audit = AuditWriter(self._state)
        self._accounting = Accounting(config, self._state, own_worker_id(), receipts, self._cluster.scrapes)

    async def start(self) -> None:
        """Returns when the replica listens. Raises ValueError and OSError for settings that cannot be used."""
        config = self._config
        probes = _probes_in(config.quality_probe.file)
        frontend = self._frontend = await Frontend.start(config, self._start_session, self._audit)
        # After vLLM has configured its own logger
        set_up_logging([RequestIds()], LIBRARIES_OF_REQUESTS, own_worker_id())
        if self._state.local is not None:
            claim_state(is_new=self._state.local.is_new)
        self._state.start()
        self._authentication.start()
        self._audit.start()
        self._accounting.start()
        self._context = ContextManager(
            frontend, lambda: self._state.stores.context, config.context, lambda: self._state.stores.search
        )
        self._prober = self._probing(config, probes)
        access = Access(self._authentication.identify, is_required=config.identity.required)
        http_app = build_http_app(
            frontend,
            self._cluster,
            self._receipts,
            self._state,
            self._context,
            config.ingress,
            access,
            self._accounting.charging,
        )
        self._services: IngressServices = http_app.state.services
        start_admin_port = self._admin_port(config)
        _settle_memory()
        if config.identity.required:
            await self._state.reached(ACCOUNTS_WITHIN_S)
        self._admin_listener = await start_admin_port()
        self._loop_watch = asyncio.create_task(watch_event_loop())
        self._prober.start()
        self._listener = await listening(http_app, config.ingress, own_service())

    def check_health(self) -> None:
        """Raise RuntimeError if a listener has ended."""
        self._listener.check_health()
        self._admin_listener.check_health()

    def scrape(self) -> Scrape:
        self._scheduling.export()
        return scrape("ingress", own_worker_id())

    def receipts_named(self, name: str) -> list[KeptReceipt]:
        """What this replica keeps of a session or an HTTP request."""
        return self._receipts.kept.named(name)

    async def close(self) -> None:
        """End what has started, the listeners first."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._config.ingress.patience_s
        await asyncio.gather(self._listener.close(), self._admin_listener.close(), self._prober.close())
        left_s = max(0.0, until - loop.time())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._services.turns.drained(left_s), left_s + WRITE_PATIENCE_S)
        tracing = asyncio.to_thread(self._traces.close, WRITE_PATIENCE_S) if self._traces else asyncio.sleep(0)
        with suppress(TimeoutError):
            written = asyncio.wait_for(self._services.completion_writer.drained(), WRITE_PATIENCE_S)
            await asyncio.gather(tracing, written)
        await self._services.titles.close()
        await self._context.close()
        self._scheduling.close()
        await self._frontend.close()
        await self._audit.drained(WRITE_PATIENCE_S)
        await self._audit.close()
        await self._accounting.close(WRITE_PATIENCE_S)
        await self._authentication.close()
        await self._state.close()
        await end_tasks([self._loop_watch])

    def _authenticating(self, config: IdentityConfig) -> Authentication:
        tokens = None if config.oidc is None else OidcTokens(config.oidc)
        return Authentication(self._state.known_accounts, time.time, config.offline_s, tokens)

    def _probing(self, config: AppConfig, probes: ProbeSet | None) -> QualityProber:
        redis = self._state.redis
        replicas = ProbeReplicas(redis, own_service(), own_worker_id(), is_alone=config.ingress.replicas == 1)
        references = ReferenceStore(REPO_ROOT / config.state.data_dir / REFERENCE_FOLDER, redis)
        asker = Asker(self._start_session, config.quality_probe.tokens)
        return QualityProber(
            config.quality_probe,
            config.model,
            probes,
            ProbePorts(self._frontend, asker, self._cluster, self._scheduling.quarantine),
            replicas,
            references,
        )

    def _admin_port(self, config: AppConfig) -> Callable[[], Awaitable[HttpListener]]:
        """Builds the application of the admin port. The function that is returned starts to listen, and raises OSError
        if the address cannot be used. Raises ValueError for an admin key that is not valid, OSError if its file cannot
        be used.
        """
        key = established_admin_key(REPO_ROOT / config.state.data_dir) if config.admin.key_required else None
        page = PageFiles(needs_key=config.admin.key_required)
        access = AdminAccess(key, page.paths)
        documents = LiveDocuments(self._services.cluster, self._receipts.kept, own_worker_id(), config.model_name)
        app = build_admin_app(self._services, config.admin, access, page, documents, settings_of(config), self._prober)
        gatekeeper = Gatekeeper(config.admin.as_listener(config.ingress))
        return partial(HttpListener.start, app, gatekeeper, own_service(), "admin.port")

    def _start_session(self, request: GenerateRequest, terms: Terms, observer: RequestObserver | None) -> Session:
        return Session(
            request,
            self._ports if observer is None else msgspec.structs.replace(self._ports, observer=observer),
            terms,
            first_token_timeout_s=self._config.ingress.first_token_timeout_s,
            verifies=random.random() < self._config.ingress.verified_share,
        )


def _exporter(config: AppConfig) -> TraceExporter | None:
    """None if the config names no collector."""
    if config.tracing.endpoint is None:
        return None
    return TraceExporter(config.tracing, config.slo, config.model_name, own_worker_id())


def _settle_memory() -> None:
    """Keep the garbage collector from walking the objects of now, which live as long as the process. This blocks the
    event loop, on a busy machine for seconds: a replica does it before the first connections are made and used.
    """
    gc.collect()
    gc.freeze()


def _probes_in(file: str | None) -> ProbeSet | None:
    """The prompts of the quality probe. None if the config names no file. Raises ValueError."""
    if file is None:
        return None
    path = REPO_ROOT / file
    try:
        with path.open("rb") as opened:
            return parsed(opened.read(MAX_FILE_BYTES + 1))
    except (OSError, ValueError) as error:
        raise ValueError(f"quality_probe.file: {path}: {error}") from error


def settings_of(config: AppConfig) -> ServiceSettings:
    """What operators are told of the config."""
    pools = {Pool.PREFILL: config.prefill, Pool.DECODE: config.decode}
    return ServiceSettings(
        version=own_version(),
        model=config.model_name,
        replicas={name: pool.replicas for name, pool in pools.items()},
        is_scaled=config.scaling is not None,
        tiers={
            name: TierSettings(dram_gib=pool.tiers.dram_gib, disk_gib=pool.tiers.disk.gib if pool.tiers.disk else None)
            for name, pool in pools.items()
        },
        keeps_receipts=config.ingress.keep_receipts,
    )
