"""Plain text streams, which are written without vLLM's objects per token, say byte for byte what vLLM's serving code
says of the same tokens."""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import ParserManager
from vllm.sampling_params import SamplingParams

from api.frontend.frontend import Frontend, vllm_state
from api.frontend.generation import Call, SessionFactory
from api.frontend.plain_streams import asks_for_text_alone, passes_text_on
from api.frontend.vllm_errors import error_in_frame
from api.wire import sse
from cluster.config.application import AppConfig, parse
from cluster.errors import InvalidRequest, Overloaded, ServingError, WorkerUnreachable
from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Path
from cluster.repository import REPO_ROOT
from router.session.receipt import RequestObserver, Terms
from tests.component.app_with_fakes import NoEvents, a_placement, frames_of

MODEL = "conf/models/baton-demo"

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
]

TOKENIZER = Tokenizer.from_file(str(REPO_ROOT / MODEL / "tokenizer.json"))

MOVED = a_placement(Path.PREFILL)
CHAT = {"model": "baton-demo", "messages": [{"role": "user", "content": "Where is Paris?"}]}
TEXT = {"model": "baton-demo", "prompt": "Paris"}


class Engines:
    """Stands for the workers: every session yields `deltas`, then fails with `error` if there is one."""

    def __init__(self) -> None:
        self.deltas: list[TokenDelta] = []
        self.error: Exception | None = None
        self.num_started = self.num_ended = 0

    def start_session(self, request: GenerateRequest, terms: Terms, observer: RequestObserver | None) -> "Session":
        self.num_started += 1
        return Session(self)


class Session:
    """It is placed anew after its first delta, as when its worker fails."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self.placement = a_placement(Path.DECODE)

    async def run(self) -> AsyncGenerator[TokenDelta, None]:
        try:
            for delta in self._engines.deltas:
                yield delta
                self.placement = MOVED
            if self._engines.error is not None:
                raise self._engines.error
        finally:
            self._engines.num_ended += 1


class Stream:
    """What a client sees of one, and what its call knows afterwards."""

    def __init__(self) -> None:
        self.call = Call()
        self.call.id = "fixed"
        self.frames: list[str | bytes] = []

    @property
    def bytes(self) -> bytes:
        """As sent; the second at which it began is no difference."""
        sent = [frame if isinstance(frame, bytes) else sse.to_wire(frame, self._error_in) for frame in self.frames]
        return re.sub(rb'"created":\d+', b'"created":0', b"".join(sent))

    @property
    def is_prepared(self) -> bool:
        """Whether it was written without vLLM's objects."""
        return any(isinstance(frame, bytes) for frame in self.frames)

    def _error_in(self, frame: str) -> ServingError | None:
        return error_in_frame(frame, self.call.error)


class Ways:
    """The same engines behind vLLM's own serving objects and behind Baton's."""

    def __init__(self, **ingress: str) -> None:
        engine = {"max_model_len": 256, "dtype": "bfloat16", "enforce_eager": True}
        self.engines = Engines()
        self.loop = asyncio.new_event_loop()
        self.fast, self.slow = self.loop.run_until_complete(
            self._frontends(parse({"model": MODEL, "engine": engine, "ingress": ingress}))
        )

    async def _frontends(self, config: AppConfig) -> tuple[Frontend, Frontend]:
        start_session = cast(SessionFactory, self.engines.start_session)  # its sessions are fakes
        fast = await Frontend.start(config, start_session, NoEvents())
        state = await vllm_state(config, start_session)
        serving = state.openai_serving_chat, state.openai_serving_completion, state.openai_serving_models
        return fast, Frontend(*serving, fast.messages, state.serving_tokenization)

    def stream(self, frontend: Frontend, body: dict[str, Any]) -> Stream:
        return self.loop.run_until_complete(self._stream(frontend, body))

    async def _stream(self, frontend: Frontend, body: dict[str, Any]) -> Stream:
        stream = Stream()
        ask = frontend.chat_completion if "messages" in body else frontend.completion
        stream.frames = [frame async for frame in frames_of(await ask(body | {"stream": True}, stream.call))]
        return stream


@pytest.fixture(scope="module", params=[{}, {"tool_call_parser": "hermes"}], ids=["no parser", "tool parser"])
def ways(request: pytest.FixtureRequest) -> Iterator[Ways]:
    ways = Ways(**request.param)
    yield ways
    ways.loop.close()


def tokens_of(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


words = st.sampled_from(["Paris is nice.", " nice", "END", '"quoted" \\ back\n\ttab', "é 你好 🙂", "\x00\x7f\u2028"])
token_ids = st.lists(
    st.one_of(words.map(tokens_of), st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=4)), max_size=8
).map(lambda parts: [token for part in parts for token in part])
"""Also fragments of characters, special tokens, and nothing at all."""

ends = st.one_of(
    st.none(),
    st.tuples(st.just(FinishReason.STOP), st.sampled_from([None, 7, "END"])),
    st.tuples(st.sampled_from([FinishReason.LENGTH, FinishReason.ABORT, FinishReason.REPETITION]), st.none()),
)


@st.composite
def generated(draw: st.DrawFn) -> list[TokenDelta]:
    """A sequence's deltas: of any length each, empty ones too, with or without an end."""
    tokens = draw(token_ids)
    deltas: list[TokenDelta] = []
    while tokens:
        size = draw(st.integers(0, 4))
        deltas.append(TokenDelta(0, tokens[:size]))
        tokens = tokens[size:]
    if (end := draw(ends)) is not None:
        ends_its_last = draw(st.booleans())
        last = deltas.pop() if ends_its_last and deltas else TokenDelta(0, [])
        deltas.append(TokenDelta(0, last.token_ids, *end))
    if draw(st.booleans()) and deltas:
        deltas[0] = msgspec.structs.replace(deltas[0], prompt_sources=PromptTokenSources(3, 2, 1))
    return deltas


bodies = st.fixed_dictionaries(
    {},
    optional={
        "stop": st.lists(st.sampled_from(["END", " nice", "is nic", "好", "\n", "<|im_end|>"]), min_size=1, max_size=3),
        "stop_token_ids": st.just([7]),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "spaces_between_special_tokens": st.booleans(),
        "min_tokens": st.integers(0, 6),
        "max_tokens": st.integers(10, 20),
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
        "temperature": st.just(0.5),
        "seed": st.just(1),
        "ignore_eos": st.booleans(),
    },
)

errors = st.sampled_from([None, None, None, Overloaded("full", 1.0), WorkerUnreachable("worker d0 is gone", "d0")])


@settings(max_examples=300, deadline=None)
@given(asked=st.sampled_from([CHAT, TEXT]), options=bodies, deltas=generated(), error=errors)
def test_both_ways_give_the_same_bytes(
    ways: Ways,
    asked: dict[str, Any],
    options: dict[str, Any],
    deltas: list[TokenDelta],
    error: WorkerUnreachable | Overloaded | None,
) -> None:
    ways.engines.deltas, ways.engines.error = deltas, error
    fast, slow = (ways.stream(frontend, asked | options) for frontend in (ways.fast, ways.slow))
    assert fast.bytes == slow.bytes
    assert not slow.is_prepared
    assert (fast.call.placement, fast.call.error) == (slow.call.placement, slow.call.error)
    assert ways.engines.num_started == ways.engines.num_ended


def says(text: str) -> list[TokenDelta]:
    *tokens, last = tokens_of(text)
    return [*(TokenDelta(0, [token]) for token in tokens), TokenDelta(0, [last], FinishReason.LENGTH)]


@pytest.fixture
def engines(ways: Ways) -> Engines:
    ways.engines.deltas, ways.engines.error = says("Paris is nice."), None
    return ways.engines


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 5, "temperature": 0.7, "top_p": 0.9, "seed": 3, "stop": ["x"], "logit_bias": {"5": 1}},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"continuous_usage_stats": True}},
        {"n": 1, "echo": False, "user": "me"},
        {"response_format": {"type": "text"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("asked", [CHAT, TEXT], ids=["chat", "text"])
def test_stream_of_text_alone_is_prepared(
    ways: Ways, engines: Engines, asked: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert ways.stream(ways.fast, asked | fields).is_prepared


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    "body",
    [
        CHAT | {"n": 2, "temperature": 0.5},
        TEXT | {"n": 2, "temperature": 0.5},
        TEXT | {"prompt": ["Paris", "London"]},
        TEXT | {"echo": True},
        CHAT | {"echo": True},
        CHAT | {"return_token_ids": True},
        TEXT | {"return_token_ids": True},
        CHAT | {"include_reasoning": False},
        CHAT | {"stream_interval": 2},
        TEXT | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        CHAT | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
    ids=lambda body: str({name: value for name, value in body.items() if name not in ("model", "messages")}),
)
def test_stream_that_says_more_than_text_is_vllm_s(ways: Ways, engines: Engines, body: dict[str, Any]) -> None:
    fast, slow = (ways.stream(frontend, body) for frontend in (ways.fast, ways.slow))
    assert not fast.is_prepared
    assert sorted(fast.bytes.split(b"\n\n")) == sorted(slow.bytes.split(b"\n\n"))  # prompts take turns as they like


@pytest.mark.parametrize("unknown", ["unheard_of", "skip_clone", "prompt"])
def test_stream_of_a_request_with_a_field_that_vllm_does_not_know_is_vllm_s(unknown: str) -> None:
    assert asks_for_text_alone(ChatCompletionRequest(**CHAT))
    assert not asks_for_text_alone(ChatCompletionRequest(**CHAT, **{unknown: 1}))


@pytest.mark.parametrize(
    ("set_by_server", "is_prepared"), [({}, True), ({"top_k": 3}, True), ({"extra_args": {"more": 1}}, False)], ids=str
)
def test_parameter_that_the_server_sets_counts_as_a_client_s(
    ways: Ways, engines: Engines, monkeypatch: pytest.MonkeyPatch, set_by_server: dict[str, Any], is_prepared: bool
) -> None:
    to_params = ChatCompletionRequest.to_sampling_params

    def with_more(request: ChatCompletionRequest, *arguments: Any) -> SamplingParams:
        params = to_params(request, *arguments)
        for name, value in set_by_server.items():
            setattr(params, name, value)
        return params

    monkeypatch.setattr(ChatCompletionRequest, "to_sampling_params", with_more)
    assert ways.stream(ways.fast, CHAT).is_prepared == is_prepared


def test_stream_of_a_request_with_tools_is_vllm_s(ways: Ways, engines: Engines) -> None:
    assert not ways.stream(ways.fast, CHAT | {"tools": [TOOL], "tool_choice": "none"}).is_prepared


@pytest.mark.parametrize("parser", ["qwen3", "deepseek_r1"])
def test_stream_of_a_model_that_reasons_is_vllm_s(parser: str) -> None:
    assert not passes_text_on(ParserManager.get_parser(reasoning_parser_name=parser))


def test_parser_that_rewrites_text_keeps_the_stream_vllm_s() -> None:
    engine_based = ParserManager.get_parser(tool_parser_name="qwen3_coder", enable_auto_tools=True)
    assert not passes_text_on(engine_based)


def test_prompt_that_the_engine_s_processor_refuses_is_refused_alike(ways: Ways, engines: Engines) -> None:
    body = TEXT | {"allowed_token_ids": [10**6]}
    refusals = []
    for way in (ways.fast, ways.slow):
        with pytest.raises(InvalidRequest) as refused:
            ways.stream(way, body)
        refusals.append(str(refused.value))
    assert refusals[0] == refusals[1] != ""


@pytest.mark.parametrize("num_read", [0, 1, 3])
@pytest.mark.parametrize("asked", [CHAT, TEXT], ids=["chat", "text"])
def test_stream_that_is_closed_early_ends_its_session_once(
    ways: Ways, engines: Engines, asked: dict[str, Any], num_read: int
) -> None:
    engines.num_started = engines.num_ended = 0

    async def read() -> None:
        ask = ways.fast.chat_completion if asked is CHAT else ways.fast.completion
        frames = frames_of(await ask(asked | {"stream": True}, Call()))
        for _ in range(num_read):
            await anext(frames)
        await frames.aclose()
        assert engines.num_ended == engines.num_started == bool(num_read)

    ways.loop.run_until_complete(read())


def test_call_outlives_its_stream_without_a_cycle(ways: Ways, engines: Engines) -> None:
    stream = ways.stream(ways.fast, CHAT)
    assert stream.call.generations == []
