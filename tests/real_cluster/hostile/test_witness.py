"""Strangers at every TCP socket that a running service's processes listen at, and at every route, with an honest client
beside them: it waits for no token a second longer than without them, none of its requests fails, no process ends, and
none keeps memory of what strangers have said.
"""

import json
import logging
import pkgutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import api.routes
from tests.drills.client import ANSWERED
from tests.drills.traffic import Traffic
from tests.hostile.http.test_fuzz import VALID, requests_gone_wrong, right_bodies
from tests.hostile.sockets.strangers import FUZZ_MINUTES, sayings
from tests.real_cluster.service import (
    DECODE_PROCESS,
    INGRESS_PROCESS,
    PREFILL_PROCESS,
    SCHEDULER_PROCESS,
    Service,
    wait_for,
)

logger = logging.getLogger("baton.witness")

REPLICAS = (INGRESS_PROCESS, SCHEDULER_PROCESS, PREFILL_PROCESS, DECODE_PROCESS)
PATIENCE_S = 1.0
"""What the honest client waits for a token at most, beyond what it waits in the same run while nobody else speaks."""
CALM_ANSWERS = 2
"""From which the honest client learns that: after a first one, which starts what was idle."""
ANSWERED_WITHIN_S = 5.0
STARTED_WITHIN_S = 30.0
HEARD_WITHIN_S = 0.05
"""How long a stranger listens to what a socket says: longer makes the test slower."""
SHORT_EXAMPLES = 40
EXAMPLES_PER_MINUTE = 600
GROWN_MIB = 48.0
"""Of a process's memory, after a first round has filled caches and pools: the allocator's fragments. A leak of the
long mode is larger.
"""
RETURNED_WITHIN_S = 30.0
ZMQ_GREETING = b"\xff" + b"\0" * 8 + b"\x7f\x03\0NULL" + b"\0" * 48


def _json(value: object) -> bytes:
    return json.dumps(value).encode()  # with NaN and Infinity, which Python writes so


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
names = st.sampled_from(
    ["model", "messages", "prompt", "input", "role", "content", "max_tokens", "n", "stop", "tools", "stream", "items"]
)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names | words, inner, max_size=5),
    max_leaves=30,
)
bodies = st.one_of(
    documents.map(_json),
    st.dictionaries(names, documents, max_size=8).map(_json),
    st.binary(max_size=300),
    st.integers(1, 100_000).map(lambda depth: b"[" * depth),
)
heads = st.one_of(
    st.binary(max_size=200).map(lambda junk: b"GET /" + junk + b" HTTP/1.1\r\n\r\n"),
    st.integers(1, 2000).map(lambda number: b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * number),
    st.integers(-9, 2**70).map(lambda size: b"POST /v1/responses HTTP/1.1\r\nContent-Length: %d\r\n\r\n{" % size),
    st.binary(max_size=50).map(
        lambda junk: b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + junk
    ),
)
conversations = st.lists(sayings | heads | requests_gone_wrong() | st.just(ZMQ_GREETING), max_size=3)


@dataclass(frozen=True)
class Asked:
    method: str
    path: str


def _routes() -> list[Asked]:
    modules = [import_module(f"api.routes.{module.name}") for module in pkgutil.iter_modules(api.routes.__path__)]
    return [
        Asked(method, route.path)
        for module in modules
        if hasattr(module, "router")
        for route in module.router.routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods)
    ]


ROUTES = _routes()
served = st.sampled_from(list(VALID)).flatmap(
    lambda path: st.tuples(st.just(Asked("POST", path)), st.just("x"), right_bodies(path).map(_json))
)
"""Requests that engines run, beside all that is refused."""


def test_strangers_cost_an_honest_client_nothing(service: Service) -> None:
    _fuzz(service, SHORT_EXAMPLES, 51)


@pytest.mark.fuzz
@pytest.mark.timeout(60 * FUZZ_MINUTES * 3 + 300)
def test_strangers_cost_an_honest_client_nothing_for_minutes(service: Service) -> None:
    _fuzz(service, int(EXAMPLES_PER_MINUTE * FUZZ_MINUTES), int(time.time()))


def _fuzz(service: Service, num_examples: int, first_seed: int) -> None:
    processes = list(_processes(service))
    _strangers(service, SHORT_EXAMPLES, first_seed)
    base = {process: _memory_mib(process) for process in processes}
    honest = Traffic(lambda: service.host, service.port, seed=40_000, num_at_once=1)
    try:
        wait_for(lambda: honest.outcomes.total() > 0, STARTED_WITHIN_S)
        calm_from = time.monotonic()
        wait_for(lambda: honest.outcomes.total() > CALM_ANSWERS, STARTED_WITHIN_S)
        calm_s = honest.longest_silence_s(calm_from)
        began_at = time.monotonic()
        _strangers(service, num_examples, first_seed + 1)
    finally:
        honest.stop()
    silence_s = honest.longest_silence_s(began_at)
    with suppress(TimeoutError):
        wait_for(lambda: not _grown(base, GROWN_MIB), RETURNED_WITHIN_S)
    logger.info("%s; silence %.2f s, without strangers %.2f s", dict(honest.outcomes), silence_s, calm_s)
    logger.info("grown by MiB: %s", _grown(base, 0))
    assert set(honest.outcomes) == {ANSWERED}
    assert silence_s < calm_s + PATIENCE_S
    assert list(_processes(service)) == processes
    assert _grown(base, GROWN_MIB) == {}


def _strangers(service: Service, num_examples: int, first_seed: int) -> None:
    listening = sorted({address for process in _processes(service) for address in _listening(process)})

    @_settings(num_examples)
    @seed(first_seed)
    @given(st.sampled_from(listening), conversations)
    def speak(address: tuple[str, int], parts: list[bytes]) -> None:
        _speak(address, parts)

    statuses: Counter[int] = Counter()
    with httpx.Client(base_url=service.url, timeout=ANSWERED_WITHIN_S) as http:

        @_settings(num_examples)
        @seed(first_seed)
        @given(st.tuples(st.sampled_from(ROUTES), words, bodies) | served)
        def ask(asked: tuple[Asked, str, bytes]) -> None:
            statuses[_ask(http, *asked)] += 1

        for address in listening:  # each of them, whatever hypothesis chooses
            _speak(address, [])
            _speak(address, [b"\0" * 1000])
        for route in ROUTES:
            _ask(http, route, "x", b"[" * 5000)
        speak()
        ask()
    assert statuses[200] > num_examples / 10, statuses


def _speak(address: tuple[str, int], parts: list[bytes]) -> None:
    with suppress(OSError), socket.create_connection(address, timeout=PATIENCE_S) as stranger:
        for part in parts:
            stranger.sendall(part)
        stranger.settimeout(HEARD_WITHIN_S)
        stranger.recv(1 << 16)


def _ask(http: httpx.Client, route: Asked, word: str, body: bytes) -> int:
    """The status of an answer, which has an error of OpenAI's shape where it is one: no failure of the server's own."""
    path = "/".join(quote(word, safe="") if part.startswith("{") else part for part in route.path.split("/"))
    answer = http.request(route.method, path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code < 500, f"{route.method} {path} {body[:500]!r}: {answer.status_code} {answer.text}"
    if answer.status_code >= 400:
        assert answer.json()["error"]["message"]
    return answer.status_code


def _settings(num_examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # an example costs a service's time, and does not fail again by itself
        suppress_health_check=list(HealthCheck),
    )


def _processes(service: Service) -> Iterator[psutil.Process]:
    """Replicas and their engine cores."""
    for name in REPLICAS:
        replica = service.process(name)
        yield replica
        yield from sorted(replica.children(recursive=True), key=lambda child: child.pid)


def _listening(process: psutil.Process) -> set[tuple[str, int]]:
    every = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}
    return {
        (every.get(connection.laddr.ip, connection.laddr.ip), connection.laddr.port)
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def _memory_mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


def _grown(base: dict[psutil.Process, float], above_mib: float) -> dict[str, float]:
    """What each process that still runs has more than it had, where that is more than `above_mib`."""
    more = {process: _memory_mib(process) - before for process, before in base.items() if process.is_running()}
    return {" ".join(process.cmdline()).strip(): mib for process, mib in more.items() if mib > above_mib}
