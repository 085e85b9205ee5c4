"""The HTTP listener gets any bytes, and every route any body. A well-behaved client is served at once meanwhile."""

import asyncio
import gc
import itertools
import json
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import Route

from api.state.lifecycle import ChatState
from cluster.config.state import StateConfig
from tests.component.app_with_fakes import CHAT, COMPLETION, a_client, an_app
from tests.component.fake_engines import FakeEngines
from tests.expected import of_kind
from tests.hostile.http.wire import GET, Wire, listening, post
from tests.hostile.sockets.strangers import FUZZ_MINUTES

PATIENCE_S = 1.0
"""Longest time that a well-behaved client may wait, in seconds."""
GROWTH_BYTES = 1 << 20
"""Bytes by which Python's own caches may grow after the first hundreds of requests."""
NUM_BEFORE_BASE = 20
"""Rounds of strangers before the base of memory is measured. These rounds fill the caches of Python and the listener.
"""
SEEDS = [
    GET,
    post(b'{"model":"m","messages":[{"role":"user","content":"Hello"}]}'),
    post(b"", b"Expect: 100-continue", length=2) + b"{}",
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nX: y\r\n\r\n",
    b"HEAD http://localhost/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
]
PIECES = [b"\r\n", b"\n", b"\0", b":", b"0", b" ", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"\xff"]
PIECES += [b"Host: evil.example\r\n", b"Authorization: Basic x\r\n", b"a" * 5000, b"HTTP/9.9", b"%00", b"[" * 100]

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs all examples of hypothesis on one event loop."""
    with asyncio.Runner() as runner:
        yield runner.run


def tried(num_examples: int, *, anew: bool) -> settings:
    """With `anew`, each run has new examples. Without it, all runs have the same examples."""
    return settings(
        max_examples=num_examples, deadline=None, derandomize=not anew, suppress_health_check=list(HealthCheck)
    )


class Stranger(NamedTuple):
    parts: list[bytes]
    """The bytes that the stranger sends, one write for each part."""
    ends_its_side: bool
    leaves_after_s: float


@st.composite
def requests_gone_wrong(draw: st.DrawFn) -> bytes:
    said = bytearray(b"".join(draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=4))))
    for where, kind, piece, length in draw(
        st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from(PIECES), st.integers(1, 20)), max_size=5)
    ):
        at = int(where * len(said))
        match kind:
            case 0:
                said[at:at] = piece
            case 1:
                del said[at : at + length]
            case 2:
                said[at : at + 1] = bytes([length * 12])
    return bytes(said)


@st.composite
def stranger(draw: st.DrawFn) -> Stranger:
    said = draw(st.one_of(requests_gone_wrong(), requests_gone_wrong(), st.binary(max_size=2000)))
    cuts = sorted({int(where * len(said)) for where in draw(st.lists(st.floats(0, 1), max_size=4))} | {0, len(said)})
    parts = [said[one:other] for one, other in itertools.pairwise(cuts)]
    return Stranger(parts, draw(st.booleans()), draw(st.sampled_from([0.001, 0.05])))


async def visited(wire: Wire, stranger: Stranger) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
    try:
        for part in stranger.parts:
            writer.write(part)
            await writer.drain()
        if stranger.ends_its_side:
            writer.write_eof()
        answers = await asyncio.wait_for(reader.read(1 << 20), stranger.leaves_after_s)
        assert not answers.startswith((b"HTTP/1.1 500", b"HTTP/1.1 502", b"HTTP/1.1 504"))
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()


async def well_behaved(wire: Wire) -> None:
    async with asyncio.timeout(PATIENCE_S):
        assert (await wire.asked(post(b"{}"))).status == 200
    wire.close()


def allocated() -> int:
    """Bytes that this process holds, without those that hypothesis holds for its examples."""
    gc.collect()
    others = [tracemalloc.Filter(False, path) for path in (hypothesis.__path__[0] + "/*", __file__)]
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(others).traces)


def any_bytes_hurt_nobody(run: Run, limits: settings) -> None:
    stack = AsyncExitStack()
    # No time-out ends within the test: the connections that strangers leave must not hinder further clients
    wire: Wire = run(stack.enter_async_context(listening(max_ongoing_requests=4)))
    num_rounds, base = 0, 0

    @limits
    @given(st.lists(stranger(), min_size=1, max_size=20))
    def nobody_is_hurt(strangers: list[Stranger]) -> None:
        nonlocal num_rounds, base

        async def meet() -> None:
            await asyncio.gather(*(visited(wire, stranger) for stranger in strangers), well_behaved(wire))

        run(meet())
        num_rounds += 1
        if num_rounds == NUM_BEFORE_BASE:
            base = allocated()

    async def all_have_left() -> None:
        async with asyncio.timeout(5):
            while wire.num_open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until the kernel has reported all clients that have left
        await stack.aclose()

    tracemalloc.start()
    try:
        nobody_is_hurt()
        assert 0 < allocated() < base + GROWTH_BYTES
    finally:
        tracemalloc.stop()
        run(all_have_left())


def test_any_bytes_at_the_listener_hurt_nobody(run: Run) -> None:
    any_bytes_hurt_nobody(run, tried(60, anew=False))


@pytest.mark.fuzz
@pytest.mark.timeout(60 * FUZZ_MINUTES + 120)
def test_any_bytes_at_the_listener_for_minutes(run: Run) -> None:
    any_bytes_hurt_nobody(run, tried(int(1000 * FUZZ_MINUTES), anew=True))


WORDS = "user assistant tool system text function image_url auto none required json_schema message".split()  # noqa: SIM905
WORDS += ["baton-demo", "", "a" * 3000, "\ud83d", "\0", "http://127.0.0.1:1/", "resp_1", "conv_1", "default"]
WORDS += ["tool_use", "tool_result", "thinking", "enabled", "any"]
NUMBERS = [0, 1, -1, 2, 3.5, 1e308, -(2**63), 2**63, 2**200, float("nan"), float("inf")]
FIELDS = """
    model messages prompt input role content type tools tool_choice n stop stream logit_bias temperature top_p
    max_tokens min_tokens seed echo response_format metadata include reasoning text background conversation store
    items function name arguments parameters tool_calls stream_options service_tier truncation previous_response_id
    bad_words repetition_detection documents chat_template_kwargs url id tokens add_special_tokens
    return_token_strs add_generation_prompt continue_final_message
    system thinking stop_sequences output_config top_k input_schema tool_use_id source budget_tokens
""".split()  # noqa: SIM905
"""Names of fields for random bodies. Those of log probabilities are missing, because the fake engines have none."""
MESSAGES = "/v1/messages"
PATH_PARAMETER = re.compile(r"\{\w+(:path)?\}")
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"model": "baton-demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
    COMPLETION: {"model": "baton-demo", "prompt": "Hello", "max_tokens": 4},
    "/v1/responses": {"model": "baton-demo", "input": "Hello", "store": False, "max_output_tokens": 16},
    MESSAGES: {"model": "baton-demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
    "/tokenize": {"model": "baton-demo", "prompt": "Hello"},
    "/detokenize": {"model": "baton-demo", "tokens": [5, 6]},
}


values = st.recursive(
    st.one_of(st.sampled_from([None, True, False]), st.sampled_from(NUMBERS), st.sampled_from(WORDS)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)),
    max_leaves=12,
)


RIGHT_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.1, 1),
    "stream": st.booleans(),
    "metadata": st.dictionaries(st.sampled_from(WORDS[:9]), st.sampled_from(WORDS[:9]), max_size=3),
}
OF_COMPLETIONS = {"n": st.integers(1, 3), "seed": st.integers(0, 9), "stop": st.lists(st.sampled_from(WORDS[:9]))}

OF_TOKENIZING: dict[str, st.SearchStrategy[Any]] = {
    "/tokenize": st.fixed_dictionaries(
        {}, optional={"return_token_strs": st.booleans(), "add_special_tokens": st.booleans()}
    ),
    "/detokenize": st.just({}),
}
"""The fields beside the valid ones. These routes refuse those of sampling."""


@st.composite
def right_bodies(draw: st.DrawFn, path: str) -> dict[str, Any]:
    """A valid body that asks for few tokens."""
    if path in OF_TOKENIZING:
        chosen: dict[str, Any] = draw(OF_TOKENIZING[path])
        return VALID[path] | chosen
    right = RIGHT_VALUES | (OF_COMPLETIONS if path in (CHAT, COMPLETION) else {})
    return VALID.get(path, {}) | draw(st.fixed_dictionaries({}, optional=right))


@st.composite
def bodies(draw: st.DrawFn, path: str) -> bytes:
    """A valid body with up to two fields set to any value. Some bodies are any value, and some are cut off."""
    body: Any = draw(right_bodies(path))
    body |= draw(st.dictionaries(st.sampled_from(FIELDS), values, max_size=2))
    match draw(st.integers(0, 19)):
        case 0:
            return json.dumps(draw(values)).encode()
        case 1:
            text = json.dumps(body).encode()
            return text[: int(draw(st.floats(0, 1)) * len(text))]
        case _:
            return json.dumps(body).encode()


class Question(NamedTuple):
    method: str
    url: str
    content: bytes | None


@st.composite
def questions(draw: st.DrawFn, routes: list[tuple[str, str]]) -> Question:
    """Requests at any route. Half of them go to a route that generates or tokenizes."""
    method, path = draw(st.one_of(st.sampled_from([("POST", path) for path in VALID]), st.sampled_from(routes)))
    url = PATH_PARAMETER.sub(lambda _: draw(st.sampled_from(["x", "resp_1", "conv_1", "%00", "%F0%9F"])), path)
    if method == "GET":
        url += "?limit=" + draw(st.sampled_from(["", "0", "x", "999"]))
    return Question(method, url, draw(bodies(path)) if method == "POST" else None)


def routes_of(client: httpx.AsyncClient) -> list[tuple[str, str]]:
    app: Any = of_kind(httpx.ASGITransport, client._transport).app
    found = [(method, route.path) for route in app.routes if isinstance(route, Route) for method in route.methods or ()]
    return sorted((method, path) for method, path in found if method != "HEAD")


def any_body_is_answered(run: Run, limits: settings, remembering: StateConfig | None = None) -> None:
    """`remembering` is the store of conversations and responses. If it is None, PostgreSQL is away."""
    stack = AsyncExitStack()

    async def start() -> httpx.AsyncClient:
        frontend = await FakeEngines().frontend(4096, tool_call_parser="hermes")
        state = None
        if remembering is not None:
            state = ChatState(remembering)
            stack.push_async_callback(state.close)
            await state.look()
        app = an_app(frontend, state=state)
        stack.push_async_callback(app.state.services.turns.drained, 60)
        return await stack.enter_async_context(a_client(app))

    client: httpx.AsyncClient = run(start())
    routes = routes_of(client)
    assert len(routes) > 20
    statuses: Counter[int] = Counter()

    @limits
    @given(questions(routes))
    def is_answered(question: Question) -> None:
        async def ask() -> tuple[httpx.Response, httpx.Response]:
            return await asyncio.gather(
                client.request(question.method, question.url, content=question.content),
                asyncio.wait_for(client.get("/healthz"), PATIENCE_S),
            )

        answer, healthy = run(ask())
        assert healthy.status_code == 200
        assert answer.headers["x-request-id"]
        statuses[answer.status_code] += 1
        if answer.status_code >= 500 and remembering is None:
            assert answer.status_code in (503, 529) and "retry-after" in answer.headers, answer.text
        else:
            assert answer.status_code < 500, answer.text

    try:
        is_answered()
        assert statuses[200] > statuses.total() / 20, statuses
        assert statuses[400] and statuses[404]
    finally:
        run(stack.aclose())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_any_body_at_any_route_is_answered(run: Run) -> None:
    any_body_is_answered(run, tried(1000, anew=False))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_any_body_at_any_route_is_answered_where_it_is_remembered(run: Run, tmp_path: Path) -> None:
    any_body_is_answered(run, tried(600, anew=False), StateConfig(data_dir=str(tmp_path), titles=False))


@pytest.mark.fuzz
@pytest.mark.timeout(60 * FUZZ_MINUTES + 120)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_any_body_at_any_route_for_minutes(run: Run) -> None:
    any_body_is_answered(run, tried(int(5000 * FUZZ_MINUTES), anew=True))
