"""What clients see of the screening: streams whose tokens come at a steady pace, without a network or engines.

The sides take turns in one process. The guard is in another one, and answers after a fixed time.
"""

import asyncio
import math
import shutil
from collections.abc import AsyncGenerator, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, NamedTuple, cast

from api.frontend.frontend import Frontend
from api.frontend.generation import Call, SessionFactory
from api.safety.answer_screen import WINDOW_LENGTH
from bench.goals.safety_cost import Measured, Pace
from bench.safety.slow_guard import SlowGuard
from bench.safety.stage_cost import FOLDER, Everything
from cluster.config.application import parse
from cluster.messages.generation import GenerateRequest, TokenDelta
from router.session.receipt import RequestObserver, Terms
from tests.component.fake_engines import FakeEngines, FakeSession

PACE_S = 0.02
"""Between two tokens of a stream."""
TOKENS = 300
"""Of an answer: some windows of the guard. More takes longer; fewer has no window between the first and the last."""
GUARD_S = 0.05
"""In which the guard answers."""
OFF = "off"
POLICIES = {
    "no guard": ("never", False),
    "in doubt": ("in_doubt", False),
    "always": ("always", False),
    "live": ("always", True),
}
"""When the guard runs, and `is_live`, by side. The tenants have these names."""


class PacedEngines(FakeEngines):
    """Tokens come at a steady pace. Each session has another answer."""

    def __init__(self) -> None:
        super().__init__()
        self.pace_s = 0.0

    def answers_with(self, texts: Sequence[str]) -> None:
        """In turn, from now on."""
        self._next = cycle(texts)

    def start_session(self, request: GenerateRequest, terms: Terms, observer: RequestObserver | None) -> FakeSession:
        return PacedSession(self, self.sequence(0, next(self._next)), len(request.prompt_token_ids), observer)

    def answer(self, text: str) -> str:
        """The first TOKENS tokens of a text."""
        return str(self.tokenizer.decode(self.tokenizer.encode(text).ids[:TOKENS]))


class PacedSession(FakeSession):
    async def run(self) -> AsyncGenerator[TokenDelta, None]:
        assert isinstance(self._engines, PacedEngines)
        async for delta in super().run():
            await asyncio.sleep(self._engines.pace_s)
            yield delta


class Times:
    """Of the streams of one side, in milliseconds."""

    def __init__(self) -> None:
        self.ttfts: list[float] = []
        self.gaps: list[float] = []
        self.longest: list[float] = []
        """Gap of each stream."""
        self.num_calls = 0
        """Of the guard."""

    def measured(self) -> Measured:
        ttft, ttft99, gap, gap99, longest, longest99 = (
            at(times) for times in (self.ttfts, self.gaps, self.longest) for at in (median, _p99)
        )
        return Measured(ttft, ttft99, gap, gap99, longest, longest99, self.num_calls / len(self.ttfts))


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100)[98]


async def stream(frontend: Frontend, side: str, prompt: str, times: Times) -> None:
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": prompt}], "stream": True}
    began = perf_counter()
    came: list[float] = []
    async for frame in cast(AsyncGenerator[Any, None], await frontend.chat_completion(body, Call(tenant=side))):
        content = frame if isinstance(frame, bytes) else frame.encode()
        if b'"content":"' in content:
            came.append(perf_counter())
        if b'"content_filter"' in content:
            raise ValueError(f"the answer to {prompt!r} is cut")
    gaps = [1e3 * (after - before) for before, after in pairwise(came)]
    times.ttfts.append(1e3 * (came[0] - began))
    times.gaps += gaps
    times.longest.append(max(gaps))


class Round(NamedTuple):
    """What is asked and answered at a time."""

    prompts: Sequence[str]
    answers: Sequence[str]


async def client_times(folder: Path, engines: PacedEngines, rounds: Sequence[Round]) -> dict[str, Measured]:
    """What each side measures. All sides have the same rounds. `folder`: a place for the policies."""
    write_policies(folder)
    engine = {"max_model_len": 4096, "dtype": "bfloat16", "enforce_eager": True}
    start = cast(SessionFactory, engines.start_session)
    frontends: list[Frontend] = []
    async with SlowGuard(GUARD_S) as guard:
        for safety in ({}, {"folder": str(folder), "guard": guard.config}):
            config = parse({"model": "conf/models/baton-demo", "engine": engine, "safety": safety})
            frontends.append(await Frontend.start(config, start, Everything()))
        sides = {side: (frontends[side != OFF], Times()) for side in (OFF, *POLICIES)}
        for number, (prompts, answers) in enumerate(rounds):
            for side, (frontend, times) in sides.items():
                engines.answers_with(answers)
                calls_before = await guard.num_calls()
                if number == 0:  # the first streams of a process find nothing in its caches
                    times = Times()
                engines.pace_s = PACE_S if number else 0.0
                await asyncio.gather(*(stream(frontend, side, prompt, times) for prompt in prompts))
                times.num_calls += await guard.num_calls() - calls_before
        for frontend in frontends:
            await frontend.close()
    return {side: times.measured() for side, (_, times) in sides.items()}


def write_policies(folder: Path) -> None:
    """The repository's folder, with a policy for each side that screens."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("examples"))
    standard = (FOLDER / "policies" / "standard.toml").read_text()
    for side, (runs, is_live) in POLICIES.items():
        policy = f'is_live = {str(is_live).lower()}\n{standard}\n[stages.guard]\nruns = "{runs}"\n'
        (folder / "policies" / f"{side}.toml").write_text(policy)
    names = "\n".join(f'"{side}" = "{side}"' for side in POLICIES)
    (folder / "tenants.toml").write_text(f'default = "standard"\n[tenants]\n{names}\n')


def pace_of(engines: PacedEngines, rounds: Sequence[Round], token_ms: float) -> Pace:
    """`token_ms`: in which a token comes."""
    answers = [answer for one in rounds for answer in one.answers]
    num_tokens = sum(len(engines.tokenizer.encode(answer).ids) for answer in answers)
    num_words = sum(len(answer.split()) for answer in answers)
    return Pace(
        word_ms=token_ms * num_tokens / num_words,
        window_ms=token_ms * num_tokens / sum(map(len, answers)) * WINDOW_LENGTH,
        guard_ms=1e3 * GUARD_S,
        num_windows=sum(math.ceil(len(answer) / WINDOW_LENGTH) for answer in answers) / len(answers),
    )
