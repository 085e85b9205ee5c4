"""The screening of an ingress replica: policies and lists that change, a classifier, a guard, and what has passed."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cachetools import LRUCache

from api.identity.caller import NO_KEY
from api.safety.audit.decision_record import AuditPort, DecisionRecord
from api.safety.classifiers.classifier_loading import load_classifier
from api.safety.guards.guard import Guard
from api.safety.policy import Runs, SafetyStage, Threshold
from api.safety.policy_folder import PolicyFolder, PolicyInForce
from api.safety.review import Appealed, Review, review_of
from api.safety.scored_text import InThread, Scored, scored_text
from api.safety.screening import Screening
from api.safety.stages import Stages, Tokens
from api.safety.verdict import Category
from cluster.config.safety import SafetyConfig
from cluster.repository import REPO_ROOT

REFRESH_INTERVAL_S = 1.0
"""Time between two looks at the folder, in seconds. Shorter looks at its files more often; longer puts changes in force
later.
"""
MOST_CLEARED = 50_000
"""Texts in which nothing was found that are remembered, so that the turns of a long chat are not screened again at each
turn. More takes memory, 100 bytes each; fewer screens long chats again.
"""


class AskedThresholds(NamedTuple):
    """The thresholds that a request asks for."""

    of_input: Mapping[Category, Threshold]
    of_output: Mapping[Category, Threshold]


class Screener:
    def __init__(self, config: SafetyConfig, tokens: Tokens, audit: AuditPort) -> None:
        """`audit`: takes what goes on record. Raises ValueError: a file of the folder, or the guard's key, is missing
        or not valid.
        """
        assert config.folder is not None
        folder = REPO_ROOT / config.folder
        self._folder = PolicyFolder(folder)
        spec = config.classifier
        self._classifier = None if spec is None else load_classifier(spec, folder / "classifier")
        self._guard = None if config.guard is None else Guard(config.guard)
        self._tokens = tokens
        self._audit = audit
        self._cleared: LRUCache[bytes, None] = LRUCache(MOST_CLEARED)
        self._refreshing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look for changes from now on."""
        self._refreshing = asyncio.create_task(self._refresh())

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        if self._guard is not None:
            await self._guard.close()

    def screening(self, tenant: str, request_id: str, asked: AskedThresholds) -> Screening | None:
        """The screening of one request. None if its policy screens nothing."""
        in_force = self._folder.data.of_tenant(tenant)
        if all(in_force.policy.stage(stage).runs is Runs.NEVER for stage in SafetyStage):
            return None
        of_input, of_output = _tightened(in_force, asked.of_input), _tightened(in_force, asked.of_output)
        stages = self._stages(tenant)
        record = DecisionRecord(self._audit, stages, tenant, request_id)
        return Screening(of_input, of_output, stages, self._tokens, self._cleared, record)

    async def scored(self, tenant: str, texts: Sequence[str], in_thread: InThread[Any]) -> list[Scored]:
        """What all stages find in texts of a tenant, whatever its policy does about it."""
        stages = self._stages(tenant)
        return list(await asyncio.gather(*(scored_text(text, stages, in_thread) for text in texts)))

    async def reviewed(self, tenant: str, appealed: Appealed, in_thread: InThread[Any]) -> Review:
        """What all stages find now in a text of a tenant that was withheld."""
        return await review_of(appealed, self._stages(tenant), in_thread)

    @property
    def version(self) -> str:
        """Of what screens."""
        stages = self._stages(NO_KEY)
        versions = [stages.rules_version, *(stage.version for stage in (stages.classifier, stages.guard) if stage)]
        return hashlib.sha256("/".join(versions).encode()).hexdigest()[:12]

    def _stages(self, tenant: str) -> Stages:
        data = self._folder.data
        return Stages(data.rules, data.rules_version, self._classifier, self._guard, tenant)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            await asyncio.to_thread(self._folder.refresh)


def _tightened(in_force: PolicyInForce, asked: Mapping[Category, Threshold]) -> PolicyInForce:
    if not asked:
        return in_force
    policy = in_force.policy.tightened(asked)
    return PolicyInForce(policy, policy.version, in_force.shadow)
