"""Ingress replicas that follow each other on a port, as in an update: their listeners on real sockets."""

import asyncio
import socket
import time
from collections import Counter
from contextlib import suppress

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from api.server import protocol as protocols
from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from bench.fronts.free_ports import free_port
from cluster.config.ingress import IngressConfig
from cluster.config.tenants.admin import AdminConfig
from tests.component.api.server.test_listener import SERVICE, App, a_gatekeeper, answering, listening
from tests.component.app_with_fakes import OPERATOR, FakeFrontend, an_admin_app, an_app

NUM_CLIENTS = 20
"""Half of them use their connections again."""
NUM_SUCCESSORS = 6
OVER_WITHIN_S = 20.0
"""On a machine that is busy with other tests."""


class Slow(App):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_at = time.perf_counter()
        while time.perf_counter() < started_at + 0.005:
            pass  # as one who renders
        self.may_answer.set()
        await super().__call__(scope, receive, send)


class Clients:
    """Clients that ask again and again, and count what becomes of it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = False
        self.ends: Counter[str] = Counter()
        self._asking = [asyncio.create_task(self._ask(keeps=bool(number % 2))) for number in range(NUM_CLIENTS)]

    async def _ask(self, *, keeps: bool) -> None:
        limits = httpx.Limits(max_keepalive_connections=1 if keeps else 0)
        async with httpx.AsyncClient(base_url=self._url, timeout=5, limits=limits) as http:
            while not self._is_over:
                try:
                    answer = await http.post("/", json={})
                    self.ends[answer.text] += 1
                except httpx.HTTPError as error:
                    self.ends[repr(error)] += 1

    async def more(self, number: int) -> None:
        """Until so many more requests are over."""
        until = self.ends.total() + number
        async with asyncio.timeout(OVER_WITHIN_S):
            while self.ends.total() < until:  # noqa: ASYNC110  # each end is counted by another task
                await asyncio.sleep(0)

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._asking)


async def test_no_request_fails_when_replicas_follow_each_other() -> None:
    gatekeeper = a_gatekeeper()
    config = gatekeeper.config
    current = await HttpListener.start(answering(), gatekeeper, SERVICE)
    clients = Clients(f"http://127.0.0.1:{config.port}")
    try:
        for _ in range(NUM_SUCCESSORS):
            await clients.more(3 * NUM_CLIENTS)
            successor = await HttpListener.start(answering(), Gatekeeper(config), SERVICE)
            await clients.more(NUM_CLIENTS)
            await asyncio.wait_for(current.close(), OVER_WITHIN_S)
            current = successor
    finally:
        await clients.stop()
        await current.close()
    assert set(clients.ends) == {"last"}


async def test_connection_without_a_request_may_still_ask_once() -> None:
    async with listening(answering()) as (listener, client):
        assert (await client.post("/")).text == "last"
        closing = asyncio.create_task(listener.close())
        await asyncio.sleep(0)
        answer = await client.post("/")
        assert (answer.text, answer.headers["connection"]) == ("last", "close")
        await asyncio.wait_for(closing, OVER_WITHIN_S)


async def test_connection_that_is_idle_for_a_moment_when_the_replica_ends_may_still_ask() -> None:
    async with listening(answering()) as (listener, client):
        await client.post("/")
        closing = asyncio.create_task(listener.close())
        await asyncio.sleep(protocols.LEAVING_S / 2)  # the client is busy with something else
        assert (await client.post("/")).text == "last"
        await asyncio.wait_for(closing, OVER_WITHIN_S)


async def test_successor_of_a_full_replica_shares_its_port() -> None:
    gatekeeper = a_gatekeeper(max_connections=1)
    app = App(streams=True)
    async with listening(app, gatekeeper) as (_, client):
        request = asyncio.create_task(client.post("/"))
        await asyncio.wait_for(app.started.wait(), OVER_WITHIN_S)
        successor = await HttpListener.start(answering(), Gatekeeper(gatekeeper.config), SERVICE)
        await asyncio.wait_for(successor.close(), OVER_WITHIN_S)
        app.may_answer.set()
        await request


async def test_request_that_takes_longer_than_the_time_to_drain_is_cut_off_as_if_its_client_had_left() -> None:
    app = App(streams=True)
    async with listening(app, drain_s=1.0) as (listener, client):
        request = asyncio.create_task(client.post("/"))
        await asyncio.wait_for(app.started.wait(), OVER_WITHIN_S)
        await asyncio.wait_for(listener.close(), OVER_WITHIN_S)
        await asyncio.wait_for(app.cancelled.wait(), OVER_WITHIN_S)
        with suppress(httpx.HTTPError):
            await request
        assert request.exception() is not None


async def test_replica_ends_in_time_while_connections_keep_coming() -> None:
    """Each takes so much time that others wait when it is done."""
    app, gatekeeper = Slow(), a_gatekeeper(drain_s=4.0)
    listener = await HttpListener.start(app, gatekeeper, SERVICE)
    clients = Clients(f"http://127.0.0.1:{gatekeeper.config.port}")
    try:
        await clients.more(3 * NUM_CLIENTS)
        async with asyncio.timeout(gatekeeper.config.drain_s):
            await listener.close()
    finally:
        await clients.stop()


async def test_port_in_use_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.server.port.BIND_TIMEOUT_S", 0.1)
    monkeypatch.setattr("api.server.port.ASK_TIMEOUT_S", 0.1)
    gatekeeper = a_gatekeeper()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", gatekeeper.config.port))
        taken.listen()
        with pytest.raises(OSError, match=r"choose another ingress\.port"):
            await HttpListener.start(App(), gatekeeper, SERVICE)


async def test_two_services_do_not_share_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.server.port.BIND_TIMEOUT_S", 0.1)
    async with listening(answering()) as (_, client):
        port = client.base_url.port
        assert port is not None
        with pytest.raises(OSError, match=r"choose another ingress\.port"):
            await HttpListener.start(answering(), Gatekeeper(IngressConfig(port=port)), "another")


async def test_replicas_share_the_admin_port_too_although_it_answers_nobody_without_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("api.server.port.BIND_TIMEOUT_S", 0.1)
    app, listeners = an_admin_app(an_app(FakeFrontend())), []
    config = AdminConfig(port=free_port()).as_listener(IngressConfig(allowed_hosts=["*"]))
    for _ in range(3):
        listeners.append(await HttpListener.start(app, Gatekeeper(config), SERVICE, "admin.port"))
    with pytest.raises(OSError, match=r"choose another admin\.port"):
        await HttpListener.start(app, Gatekeeper(config), "another", "admin.port")
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{config.port}") as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers=OPERATOR)).status_code == 200
    begun = time.monotonic()
    await asyncio.gather(*(listener.close() for listener in listeners))
    assert time.monotonic() - begun < OVER_WITHIN_S
