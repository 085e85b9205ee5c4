"""CPU time of the screening without a guard, stage by stage and request by request."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from time import process_time, thread_time
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from api.safety.audit.event import SafetyEvent
from api.safety.classifiers.classifier_loading import load_classifier
from api.safety.judge import Judged, judged_text
from api.safety.policy import Policy, Runs, SafetyStage, StagePolicy
from api.safety.policy_folder import PolicyFolder
from api.safety.scans.rules import TextRole
from api.safety.screener import AskedThresholds, Screener
from api.safety.stages import Tokens
from cluster.config.safety import SafetyConfig
from cluster.repository import REPO_ROOT

FOLDER = REPO_ROOT / "conf" / "safety"
ROUNDS = 11
"""Times that each stage reads the texts. More makes the medians steadier and takes longer."""
STAGES: dict[str, list[SafetyStage]] = {
    "lists": [SafetyStage.LISTS],
    "personal data": [SafetyStage.PERSONAL_DATA],
    "classifier": [SafetyStage.CLASSIFIER],
    "all three": [SafetyStage.LISTS, SafetyStage.PERSONAL_DATA, SafetyStage.CLASSIFIER],
}
MOST_CHARACTERS = 1_000_000
"""Of a request that is read. Fewer refuses the prompts of the bench; more changes nothing."""


class Everything:
    """An audit that keeps nothing."""

    def is_full(self, tenant: str) -> bool:
        return False

    def note(self, event: SafetyEvent) -> "Everything":
        return self

    async def is_durable(self) -> bool:
        return True


class Screened:
    """The stages of the repository's folder."""

    def __init__(self) -> None:
        self.data = PolicyFolder(FOLDER).data
        self.classifier = load_classifier("linear", FOLDER / "classifier")

    def start(self, policy: Policy, role: TextRole) -> Judged:
        return judged_text(policy, None, role, self.data.rules, self.classifier)

    def whole(self, policy: Policy, role: TextRole, parts: Sequence[str]) -> Judged:
        """A text that comes part by part."""
        judged = self.start(policy, role)
        for part in parts:
            judged.text.feed(part)
        judged.text.finish()
        return judged

    def policy(self, stages: list[SafetyStage]) -> Policy:
        """These stages alone, and all personal data."""
        never = {stage: StagePolicy(runs=Runs.NEVER) for stage in SafetyStage if stage not in stages}
        kinds = self.data.policies["strict"].policy.personal_data_out
        return Policy(stages=never, personal_data_in=kinds, personal_data_out=kinds)

    def passes(self, text: str) -> bool:
        """Whether the standard policy lets the text pass as a prompt and as an answer, so that all of it is read."""
        policy = self.data.policies["standard"].policy
        return not any(self.whole(policy, role, [text]).judge.blocked for role in (TextRole.USER, TextRole.ANSWER))


def stage_costs(screened: Screened, role: TextRole, texts: Sequence[Sequence[str]]) -> dict[str, float]:
    """Microseconds for all texts, each of which comes in parts, by stage. The stages take turns."""
    policies = {name: screened.policy(stages) for name, stages in STAGES.items()}
    took: dict[str, list[float]] = {name: [] for name in STAGES}
    for _ in range(ROUNDS):
        for name, policy in policies.items():
            began = thread_time()
            for parts in texts:
                screened.whole(policy, role, parts)
            took[name].append(1e6 * (thread_time() - began))
    return {name: median(values) for name, values in took.items()}


class RequestCost(NamedTuple):
    """Microseconds for the screening of one chat's body under the standard policy: texts are looked for, read, hashed
    and put on record.
    """

    new: float
    again: float
    """When all of its texts have passed before."""


def request_cost(tokenizer: Tokenizer, prompts: Sequence[str]) -> RequestCost:
    return asyncio.run(_request_cost(tokenizer, prompts))


async def _request_cost(tokenizer: Tokenizer, prompts: Sequence[str]) -> RequestCost:
    tokens = Tokens(lambda text: tokenizer.encode(text).ids, tokenizer.decode, MOST_CHARACTERS)
    screener = Screener(SafetyConfig(folder=str(FOLDER)), tokens, Everything())
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS):
        for prompt in prompts:
            for times in took:
                began = process_time()
                await _read(screener, f"{number} {prompt}")
                times.append(1e6 * (process_time() - began))
    await screener.close()
    return RequestCost(*map(median, took))


async def _read(screener: Screener, text: str) -> None:
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": text}]}
    screening = screener.screening("", "", AskedThresholds({}, {}))
    assert screening is not None
    await screening.read(body, _in_thread)
    if screening.input_verdict is not None:
        await screening.input_verdict


def _in_thread(work: Callable[[], Any]) -> Awaitable[Any]:
    return asyncio.to_thread(work)
