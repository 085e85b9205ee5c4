"""The HTTP application with a fake frontend and a fake cluster, which answer as a test has set them."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import httpx
from fastapi import FastAPI
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

from api.charging.charging import Charging
from api.context.manager import ContextManager
from api.frontend.frontend import Frontend
from api.frontend.generation import Call
from api.frontend.messages.translator import MessageTranslator
from api.http_app import build_admin_app, build_http_app
from api.identity.access import Access
from api.identity.admin.admin_access import AdminAccess
from api.identity.admin.admin_key import ADMIN_PREFIX
from api.safety.audit.event import SafetyEvent
from api.server.kept_receipts import KeptReceipt, KeptReceipts
from api.server.receipt_log import ReceiptLog
from api.state.encryption.tenant_keys import KEY_BYTES, LocalMasterKey, TenantKeys
from api.state.event_streams.event_log import LogSpace
from api.state.redis.client import RedisClient
from api.state.redis.idempotency_keys import IdempotencyKeys
from api.state.redis.read_cache import ReadCache
from api.web.live import LiveDocuments
from api.web.page_files import PageFiles
from cluster.config.context import ContextConfig
from cluster.config.ingress import IngressConfig
from cluster.config.tenants.admin import AdminConfig
from cluster.errors import ServingError, StateUnavailable
from cluster.messages.ids import CellName, Path, Pool, RequestId, SloClass, WorkerId
from cluster.messages.operations import DrainAnswer, DrainAsk, SchedulerStatus, StoreStatus
from cluster.messages.placement import Placement
from cluster.messages.transport import LinkSpeed, WorkerTransport
from cluster.messages.views import CellState, CellsView, CellView, ClusterView, QueuedRequest, Readiness, WorkerView
from cluster.metrics.page import render
from router.session.receipt import Terms
from tests.component.open_access import OPEN
from tests.conformance.watch import watched
from tests.unit.scrapes import a_scrape
from tests.unit.statuses import a_scheduler_status, a_worker_status

CARD: dict[str, Any] = {"id": "baton-demo", "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 4096}
CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
ADMIN_KEY = f"{ADMIN_PREFIX}{'k' * 40}"
OPERATOR = {"authorization": f"Bearer {ADMIN_KEY}"}
"""The header of a request on the admin port."""


class NoEvents:
    """The audit of a service that screens nothing."""

    def is_full(self, tenant: str) -> bool:
        return False

    def note(self, event: SafetyEvent) -> None:
        raise AssertionError(f"nothing is screened here, and this was: {event}")


class FakeFrontend:
    """Answers every request with `answer`: a body, a list of frames, or an error to raise."""

    def __init__(self, answer: dict[str, Any] | list[str] | Exception | None = None) -> None:
        self.answer = {"id": "1", "choices": []} if answer is None else answer
        self.placement: Placement | None = a_placement(Path.PREFILL_DECODE)
        self.failed_with: ServingError | None = None
        """What vLLM's error frame does not say."""
        self.bodies: list[tuple[str, Any]] = []
        self.terms: list[Terms] = []
        self.stream_is_closed = False
        serving: Any = AnthropicServingMessages.__new__(AnthropicServingMessages)  # without vLLM's renderer
        serving._merge_inline_system = False
        serving.model_config = SimpleNamespace(max_model_len=CARD["max_model_len"])
        self.messages = MessageTranslator(serving, "none")

    async def models(self) -> list[dict[str, Any]]:
        return [CARD]

    async def chat_completion(self, body: Any, call: Call) -> dict[str, Any] | AsyncGenerator[str, None]:
        return self._answered("chat", body, call)

    async def count_tokens(self, body: Any) -> int:
        return 1

    async def completion(self, body: Any, call: Call) -> dict[str, Any] | AsyncGenerator[str, None]:
        return self._answered("text", body, call)

    def _answered(self, kind: str, body: Any, call: Call) -> dict[str, Any] | AsyncGenerator[str, None]:
        self.bodies.append((kind, body))
        self.terms.append(call.terms)
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, list):
            return self._frames(self.answer, call)
        call.placement = self.placement
        return self.answer

    async def _frames(self, frames: list[str], call: Call) -> AsyncGenerator[str, None]:
        try:
            call.placement, call.error = self.placement, self.failed_with
            for frame in frames:
                yield frame
        finally:
            self.stream_is_closed = True


class FakeCluster:
    """One prefill and one decode worker, connected unless a test says otherwise."""

    def __init__(
        self,
        *,
        connected: bool = True,
        mismatch: str | None = None,
        error: ServingError | None = None,
        cells: dict[CellName, CellState] | None = None,
    ) -> None:
        self._error = error
        self._cells = cells
        self._view = ClusterView(
            workers=[a_worker("p0", Pool.PREFILL), a_worker("d0", Pool.DECODE, *(["p0"] if connected else []))],
        )
        self._mismatch = mismatch
        self.drain_asks: list[DrainAsk] = []
        self.scrapes = [
            a_scrape(name, "x", "baton_output_tokens_total", value)
            for name, value in (("ingress", 1.0), ("prefill", 2.0))
        ]
        self.kept = KeptReceipts(9)
        """The receipts of another replica."""

    async def cells(self) -> CellsView:
        return CellsView(application="baton", cells=[a_cell("main")])

    async def view(self) -> ClusterView:
        if self._error is not None:
            raise self._error
        return self._view

    async def readiness(self) -> Readiness:
        view = await self.view()
        return Readiness(view.num_prefill, view.num_decode, view.num_links, self._mismatch, self._cells)

    async def queue(self) -> list[QueuedRequest]:
        return [
            QueuedRequest(
                request_id=RequestId("r"),
                slo_class=SloClass.BATCH,
                num_before=0,
                waited_s=1.0,
                wait_s=2.0,
                gives_up_s=20.0,
            )
        ]

    async def statuses(self) -> list[SchedulerStatus]:
        await self.view()
        return [a_scheduler_status(a_worker_status("p0"), a_worker_status("d0"))]

    async def drain(self, ask: DrainAsk) -> DrainAnswer:
        self.drain_asks.append(ask)
        if self._error is not None:
            raise self._error
        return DrainAnswer(was_draining=[one.drains for one in self.drain_asks[:-1]][-1:] == [True])

    async def metrics_page(self) -> bytes:
        return render(self.scrapes)

    async def receipts(self, name: str) -> list[KeptReceipt]:
        return self.kept.named(name)


def a_cell(name: str, state: CellState = CellState.OPEN) -> CellView:
    return CellView(
        name=CellName(name), state=state, num_prefill=1, num_decode=1, num_links=1, num_open=3, num_waiting=2
    )


def a_placement(path: Path, **fields: Any) -> Placement:
    prefill = None if path is Path.DECODE else WorkerId("p0")
    decode = None if path is Path.PREFILL else WorkerId("d0")
    return Placement(path=path, prefill=prefill, decode=decode, why="a test wants it", **fields)


def a_worker(worker: str, pool: Pool, *connected: str) -> WorkerView:
    return WorkerView(
        worker=WorkerId(worker),
        pool=pool,
        num_placed=0,
        max_requests=8,
        host="10.0.0.1",
        transport=WorkerTransport(),
        links={WorkerId(prefill): LinkSpeed(0.002, 4e9) for prefill in connected},
    )


class StateAway:
    """A PostgreSQL that was never reached, and a Redis."""

    cache = ReadCache(RedisClient(), TenantKeys(LocalMasterKey(bytes(KEY_BYTES))), keep_s=600)

    idempotency_keys = IdempotencyKeys(RedisClient(), str)
    max_item_bytes = 10 << 20
    log_space = LogSpace(1 << 30, 1 << 20)

    @property
    def stores(self) -> None:
        raise StateUnavailable("the stored conversations cannot be reached yet", 2.0)

    def store_statuses(self) -> list[StoreStatus]:
        return [StoreStatus(name="PostgreSQL", is_there=False, is_embedded=True)]

    def accounts(self) -> None:
        raise StateUnavailable("the accounts cannot be reached yet", 2.0)


def an_app(
    frontend: FakeFrontend | Frontend,
    cluster: FakeCluster | None = None,
    receipts: ReceiptLog | None = None,
    state: Any = None,
    context: ContextManager | None = None,
    access: Access = OPEN,
    charging: Charging | None = None,
    **config: Any,
) -> FastAPI:
    """`config`: of the ingress."""
    config.setdefault("allowed_hosts", ["*"])
    state = state or StateAway()
    whole = cast(Frontend, frontend)  # a fake has what the routes use
    context = context or ContextManager(whole, lambda: state.stores.context, ContextConfig())
    return build_http_app(
        whole,
        cluster or FakeCluster(),
        receipts or ReceiptLog(0),
        state,
        context,
        IngressConfig(**config),
        access,
        charging,
    )


def an_admin_app(app: FastAPI, key: str | None = ADMIN_KEY) -> FastAPI:
    """That of the admin port, beside the one of the public port."""
    services = app.state.services
    page = PageFiles(needs_key=key is not None)
    documents = LiveDocuments(services.cluster, services.receipts.kept, "replica-0", CARD["id"])
    return build_admin_app(services, AdminConfig(), AdminAccess(key, page.paths), page, documents)


def frames_of(answer: dict[str, Any] | AsyncGenerator[str | bytes, None]) -> AsyncGenerator[str | bytes, None]:
    """The frames of an answer that is a stream."""
    assert not isinstance(answer, dict), answer
    return answer


def a_client(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"content-type": "application/json"}  # of bodies that a test has written by itself
    client = httpx.AsyncClient(transport=transport, base_url="http://baton", headers=headers)
    return watched(client, invented(app.state.services.frontend))


def invented(frontend: FakeFrontend | Frontend) -> frozenset[str]:
    """The paths that it answers with what a test likes."""
    return frozenset() if isinstance(frontend, Frontend) else frozenset({CHAT, COMPLETION})


async def asked(
    method: str, url: str, frontend: FakeFrontend | None = None, cluster: FakeCluster | None = None, **options: Any
) -> httpx.Response:
    """One request to a fresh application."""
    of_app = {name: options.pop(name) for name in ("allow_path_header", "keep_receipts", "receipts") if name in options}
    async with a_client(an_app(frontend or FakeFrontend(), cluster, **of_app)) as client:
        return await client.request(method, url, **options)


async def asked_by_operator(
    method: str, url: str, cluster: FakeCluster | None = None, receipts: ReceiptLog | None = None, **config: Any
) -> httpx.Response:
    """One request to the admin port of a fresh ingress."""
    app = an_admin_app(an_app(FakeFrontend(), cluster, receipts, **config))
    async with a_client(app) as client:
        return await client.request(method, url, headers=OPERATOR)


async def posted(frontend: FakeFrontend | None = None, url: str = CHAT, **options: Any) -> httpx.Response:
    return await asked("POST", url, frontend, **({"json": {"model": "baton-demo"}} | options))
