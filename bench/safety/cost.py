"""What the screening costs: each stage per token, what clients see of it, and how often ordinary chats meet it.

    make bench-safety

The first table is CPU time per generated token, of ordinary answers that come token by token, by stage. The second one
is TTFT and the gaps between the frames of streams whose tokens come at a steady pace, with the screening and without it
in turns, in one process, without a network or engines. The last figure is the share of the chats that the demo model
was trained with in which a stage finds anything at all.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from itertools import cycle
from statistics import median, quantiles
from time import perf_counter, thread_time
from typing import Any, NamedTuple, cast

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from api.frontend.frontend import Frontend
from api.frontend.generation import Call, SessionFactory
from api.safety.audit.event import SafetyEvent
from api.safety.classifiers.classifier_loading import load_classifier
from api.safety.judge import Judged, judged_text
from api.safety.policy import Policy, Runs, SafetyStage, StagePolicy
from api.safety.policy_folder import PolicyFolder
from api.safety.scans.rules import TextRole
from bench.goals.safety_cost import missed
from bench.goals.verdict import conclude
from bench.safety.examples import read_examples
from cluster.config.application import parse
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.repository import REPO_ROOT
from router.session.receipt import Terms
from tests.component.fake_engines import FakeEngines, FakeSession

FOLDER = REPO_ROOT / "conf" / "safety"
ROUNDS = 15
"""Times that each stage reads the texts. More makes the medians steadier and takes longer."""
PACE_S = 0.02
"""Between two tokens of a stream."""
TOKENS = 100
"""Of a stream."""
CHATS = 2000
"""Documents of the demo model's training that are screened."""
STAGES: dict[str, list[SafetyStage]] = {
    "lists": [SafetyStage.LISTS],
    "personal data": [SafetyStage.PERSONAL_DATA],
    "classifier": [SafetyStage.CLASSIFIER],
    "all three": [SafetyStage.LISTS, SafetyStage.PERSONAL_DATA, SafetyStage.CLASSIFIER],
}


class Screened:
    """The stages of the repository's folder."""

    def __init__(self) -> None:
        self.data = PolicyFolder(FOLDER).data
        self.classifier = load_classifier("linear", FOLDER / "classifier")

    def text(self, policy: Policy, role: TextRole = TextRole.ANSWER) -> Judged:
        return judged_text(policy, None, role, self.data.rules, self.classifier)

    def policy(self, stages: list[SafetyStage]) -> Policy:
        never = {stage: StagePolicy(runs=Runs.NEVER) for stage in SafetyStage if stage not in stages}
        strict = self.data.policies["strict"].policy
        return Policy(stages=never, personal_data_out=strict.personal_data_out)


def stage_costs(screened: Screened, texts: list[list[str]]) -> dict[str, float]:
    """Microseconds per token, by stage. The stages take turns."""
    policies = {name: screened.policy(stages) for name, stages in STAGES.items()}
    took: dict[str, list[float]] = {name: [] for name in STAGES}
    num_tokens = sum(map(len, texts))
    for _ in range(ROUNDS):
        for name, policy in policies.items():
            began = thread_time()
            for tokens in texts:
                judged = screened.text(policy)
                for token in tokens:
                    judged.text.feed(token)
                judged.text.finish()
            took[name].append(1e6 * (thread_time() - began) / num_tokens)
    return {name: median(values) for name, values in took.items()}


class PacedEngines(FakeEngines):
    """Tokens come at a steady pace. Each session has another text."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self.answers = [self.tokenizer.encode(text).ids[:TOKENS] for text in texts]
        self._next = cycle(self.answers)

    def start_session(self, request: GenerateRequest, terms: Terms) -> FakeSession:
        return PacedSession(self, self.sequence(0, self.tokenizer.decode(next(self._next))))


class PacedSession(FakeSession):
    async def run(self) -> AsyncGenerator[TokenDelta, None]:
        async for delta in super().run():
            await asyncio.sleep(PACE_S)
            yield delta


class Everything:
    """An audit that keeps nothing."""

    def is_full(self, tenant: str) -> bool:
        return False

    def note(self, event: SafetyEvent) -> "Everything":
        return self

    async def is_durable(self) -> bool:
        return True


class Times(NamedTuple):
    """Of the streams of one side, in milliseconds."""

    ttfts: list[float]
    gaps: list[float]

    def line(self) -> list[float]:
        """TTFT at p50 and p99, gap at p50 and p99."""
        return [value for times in self for value in (median(times), quantiles(times, n=100)[98])]


async def stream(frontend: Frontend, times: Times) -> None:
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": "Tell me about Paris."}], "stream": True}
    last = began = perf_counter()
    async for frame in cast(AsyncGenerator[Any, None], await frontend.chat_completion(body, Call())):
        now = perf_counter()
        if b'"content":"' in (frame if isinstance(frame, bytes) else frame.encode()):
            (times.ttfts if last == began else times.gaps).append(1e3 * (now - last))
            last = now


async def client_times(num_streams: int, rounds: int) -> tuple[dict[str, list[float]], float]:
    """The times of each side, and the tokens of a word, in number: the screening holds back a word."""
    harmless = [example.text for example in read_examples() if example.is_harmless]
    engines = PacedEngines([" ".join(harmless[at : at + 20]) for at in range(0, 20 * num_streams, 20)])
    engine = {"max_model_len": 4096, "dtype": "bfloat16", "enforce_eager": True}
    start = cast(SessionFactory, engines.start_session)
    sides: dict[str, tuple[Frontend, Times]] = {}
    for name, safety in (("off", {}), ("on", {"folder": str(FOLDER)})):
        config = parse({"model": "conf/models/baton-demo", "engine": engine, "safety": safety})
        sides[name] = (await Frontend.start(config, start, Everything()), Times([], []))
    for number in range(2 * rounds):
        frontend, times = sides[list(sides)[number % 2]]
        if number < 2:  # the first streams of a process find nothing in its caches
            times = Times([], [])
        await asyncio.gather(*(stream(frontend, times) for _ in range(num_streams)))
    for frontend, _ in sides.values():
        await frontend.close()
    num_words = sum(len(engines.tokenizer.decode(tokens).split()) for tokens in engines.answers)
    per_word = sum(map(len, engines.answers)) / num_words
    return {name: times.line() for name, (_, times) in sides.items()}, per_word


def demo_chats() -> list[str]:
    command = f"import corpus, json; print(json.dumps(corpus.sample_text('safety', {CHATS})))"
    folder = REPO_ROOT / "conf" / "models" / "recipe"
    made = subprocess.run([sys.executable, "-c", command], cwd=folder, check=True, capture_output=True, text=True)
    return list(json.loads(made.stdout))


def touched(screened: Screened) -> dict[str, float]:
    """The share of the demo model's chats by what the standard policy does about their messages."""

    policy = screened.data.policies["standard"].policy
    counts = {"blocked": 0, "in doubt": 0, "masked": 0}
    for text in demo_chats():
        judged = screened.text(policy)
        judged.text.feed(text)
        judged.text.finish()
        judge = judged.judge
        counts["blocked"] += bool(judge.blocked)
        counts["in doubt"] += bool(judge.doubts)
        counts["masked"] += bool(judge.masked)
    return {name: count / CHATS for name, count in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16, help="streams at a time (default: 16)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each side (default: 8)")
    asked = parser.parse_args()
    screened = Screened()
    tokenizer = FakeEngines().tokenizer
    benign = [example.text for example in read_examples() if example.is_harmless][:200]
    texts = [[tokenizer.decode([token]) for token in tokenizer.encode(text).ids] for text in benign]
    costs = stage_costs(screened, texts)
    print("CPU time per generated token")
    for name, us in costs.items():
        print(f"  {name:16} {us:6.1f} us")
    times, per_word = asyncio.run(client_times(asked.streams, asked.rounds))
    word_ms = 1e3 * PACE_S * per_word
    print(f"\n{asked.streams} streams at a time, a token every {1e3 * PACE_S:.0f} ms, a word every {word_ms:.0f} ms")
    print(f"  {'screening':10} {'TTFT p50':>9} {'p99':>7} {'gap p50':>9} {'p99':>7}  (ms)")
    for name, (ttft, ttft99, gap, gap99) in times.items():
        print(f"  {name:10} {ttft:9.1f} {ttft99:7.1f} {gap:9.1f} {gap99:7.1f}")
    shares = touched(screened)
    print(
        f"\nof {CHATS} chats of the demo model: " + ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
    )
    conclude(missed(costs, times, shares, word_ms))


if __name__ == "__main__":
    main()
