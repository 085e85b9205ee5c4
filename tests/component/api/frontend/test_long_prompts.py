"""A long prompt holds up its own request, not the streams that share its event loop."""

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import pytest

from api.frontend.frontend import Frontend
from api.frontend.generation import Call, SessionFactory
from cluster.config.application import parse
from cluster.messages.generation import FinishReason, GenerateRequest, TokenDelta
from cluster.messages.ids import Path
from router.session.receipt import RequestObserver, Terms
from tests.component.app_with_fakes import NoEvents, a_placement, frames_of

NUM_TOKENS = 32_000
LONG = "Paris is nice and the weather is good, said the man. " * 1_800
TURNS = [{"role": ("user", "assistant")[turn % 2], "content": LONG[:90]} for turn in range(1_000)]


class Session:
    placement = a_placement(Path.DECODE)

    async def run(self) -> AsyncGenerator[TokenDelta, None]:
        yield TokenDelta(0, [5], FinishReason.LENGTH)


async def a_frontend(requests: list[GenerateRequest]) -> Frontend:
    def start_session(request: GenerateRequest, terms: Terms, observer: RequestObserver | None) -> Session:
        requests.append(request)
        return Session()

    engine = {"max_model_len": 65_536, "dtype": "bfloat16", "enforce_eager": True}
    config = parse({"model": "conf/models/baton-demo", "engine": engine})
    return await Frontend.start(config, cast(SessionFactory, start_session), NoEvents())  # its sessions are fakes


class LoopWatch:
    """The longest that the loop's thread worked without letting anything else run, in CPU time: a busy machine does
    not lengthen it.
    """

    async def __aenter__(self) -> "LoopWatch":
        self.longest_s = 0.0
        self._task = asyncio.ensure_future(self._run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_s = max(self.longest_s, now - last)
            last = now


@pytest.fixture
def frozen() -> Iterator[None]:
    """As in an ingress replica: a collection that walks all of vLLM would be a stretch of its own."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen")
@pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning")  # vLLM reads its own field
async def test_loop_is_not_held_up_by_a_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    requests: list[GenerateRequest] = []
    frontend = await a_frontend(requests)

    async def longest_s(body: dict[str, Any]) -> float:
        ask = frontend.chat_completion if "messages" in body else frontend.completion
        async with LoopWatch() as watch:
            frames = frames_of(await ask({"model": "baton-demo", "stream": True} | body, Call()))
            async for _ in frames:
                pass
        return watch.longest_s

    await longest_s({"prompt": LONG})  # whatever is done but once
    began = time.process_time()
    await longest_s({"prompt": LONG})
    whole_s = time.process_time() - began  # nearly all of it tokenizing
    assert len(requests[-1].prompt_token_ids) > NUM_TOKENS
    for body in (
        {"messages": [{"role": "user", "content": LONG}]},
        {"messages": TURNS},
        {"prompt": LONG},
        {"prompt": requests[-1].prompt_token_ids},
    ):
        assert await longest_s(body) < whole_s / 3
