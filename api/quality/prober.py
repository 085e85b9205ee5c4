"""QualityProber: probes all workers on all paths from one ingress replica at a time (docs/quality.md)."""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from api.frontend.probing import PromptRenderer
from api.quality.asking import Asker
from api.quality.board import CommandKind, ProbeCommand, QualityView
from api.quality.comparison import ProbeResult
from api.quality.probe_set import OWN_PROMPTS, ProbePrompt, ProbeSet, Reference, fingerprint
from api.quality.references import ReferenceStore
from api.quality.replicas import ProbeReplicas
from api.quality.rounds import ProbeRounds
from api.quality.visit import Visit, VisitResult
from api.quality.visitor import Visitor
from cluster.config.observability.quality_probe import QualityProbeConfig
from cluster.errors import NotFound, ServingError, StateUnavailable
from cluster.messages.ids import WorkerId
from cluster.messages.quality import WorkerQuarantine
from cluster.messages.views import ClusterView
from cluster.metrics.quality import PROBES, QUARANTINED, set_last_probes, set_reference, set_scores

logger = logging.getLogger("baton.quality")

LOOK_S = 1.0
"""Time between two looks at what is due, in seconds. Longer begins rounds of operators later; shorter takes CPU time of
an ingress that has nothing to probe.
"""
VIEW_S = 20.0
"""Longest time between two looks at which workers live, in seconds; shorter where `every_s` is short. Longer probes new
workers later; shorter asks the Scheduler of a large cluster for its view more often.
"""
HOLD_S = 5.0
"""Time between two renewals of the lease, and between two tries to get it, in seconds. Longer loses the lease of a
replica that is slow for a moment; shorter asks Redis more often.
"""
TELL_S = 10.0
"""Time between two words to the Scheduler about workers in quarantine, in seconds. Longer gives a wrong worker requests
for longer after a Scheduler was replaced; shorter sends more messages.
"""
RETRY_AFTER_S = 5.0
"""Retry-After of a command that no replica can be asked for now, in seconds."""


class ViewPort(Protocol):
    async def view(self) -> ClusterView: ...


class ProbePorts(NamedTuple):
    """What the probe uses of the ingress."""

    renderer: PromptRenderer
    asker: Asker
    cluster: ViewPort
    quarantine: Callable[[WorkerQuarantine], Awaitable[None]]
    """Tells all Schedulers. Raises ServingError."""


class QualityProber:
    def __init__(
        self,
        config: QualityProbeConfig,
        model: str,
        given: ProbeSet | None,
        ports: ProbePorts,
        replicas: ProbeReplicas,
        references: ReferenceStore,
    ) -> None:
        """`model`: as the config names it. `given`: the file of the config, if there is one."""
        self._config = config
        self._model = model
        self._given = given
        self._ports = ports
        self._replicas = replicas
        self._references = references
        self._prompts: dict[str, list[int]] = {}
        """The tokens of each prompt."""
        self._fingerprint = ""
        self._given_reference: Reference | None = None
        """That of the file, if it is for this model and these prompts."""
        self._visitor: Visitor | None = None
        self._rounds: ProbeRounds | None = None
        """None while another replica probes."""
        self._visits: set[asyncio.Task[None]] = set()
        self._held_at = self._seen_at = self._told_at = float("-inf")
        self._told: dict[WorkerId, str] = {}
        self._probing: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._config.enabled:
            self._probing = asyncio.create_task(self._probe())

    async def close(self) -> None:
        """End the probes that run, and let another replica probe."""
        tasks = [*self._visits, *([self._probing] if self._probing else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._replicas.release()

    async def view(self) -> QualityView:
        """What the replica that probes has found."""
        if self._rounds is not None:
            return self._rounds.view(self._replicas.replica, _now(), time.time())
        shown = await self._replicas.shown()
        nothing = QualityView(enabled=self._config.enabled, every_s=self._config.every_s)
        return nothing if shown is None else shown

    async def command(self, kind: CommandKind, worker: WorkerId | None = None) -> str:
        """Have the replica that probes do something. The id of the command. Raises NotFound where no worker is probed,
        StateUnavailable if no replica can be asked.
        """
        if not self._config.enabled:
            raise NotFound("the quality probe is off: quality_probe.enabled is false", None, "probe_off")
        command = ProbeCommand(id=uuid.uuid4().hex, kind=kind, worker=worker)
        if self._rounds is not None:
            await self._obey(self._rounds, command)
        elif not await self._replicas.pass_on(command):
            raise StateUnavailable("the replica that probes cannot be asked while Redis is away", RETRY_AFTER_S)
        return command.id

    async def reference(self) -> ProbeSet:
        """The prompts and the reference, for a file. Raises NotFound without a reference."""
        reference = None
        if self._rounds is not None:
            reference = self._rounds.reference
        elif self._prompts:
            reference, _ = await self._kept_reference()
        if reference is None:
            raise NotFound("no reference is learned yet", None, "no_reference")
        return ProbeSet(
            prompts=[prompt for prompt in self._all_prompts if prompt.name in self._prompts], reference=reference
        )

    async def _probe(self) -> None:
        try:
            await self._prepare()
            while self._prompts:
                try:
                    await self._look()
                except ServingError as error:
                    logger.info("workers are not probed now: %s", error)
                except Exception:  # the loop must go on after any error
                    logger.exception("the quality probe failed")
                await asyncio.sleep(LOOK_S)
        finally:
            self._stop()

    async def _prepare(self) -> None:
        for prompt in self._all_prompts:
            try:
                self._prompts[prompt.name] = await _tokens_of(prompt, self._ports.renderer)
            except ServingError as error:
                logger.error("prompt %s of the quality probe cannot be used: %s", prompt.name, error)
        self._fingerprint = fingerprint(self._model, self._prompts, self._config.tokens)
        self._visitor = Visitor(self._ports.asker, self._prompts)
        given = self._given.reference if self._given is not None else None
        if given is not None and given.fingerprint == self._fingerprint and given.answers:
            self._given_reference = given
        elif given is not None:
            logger.error(
                "the reference in %s is of another model, other prompts or other numbers of tokens: one is learned",
                self._config.file,
            )

    async def _look(self) -> None:
        """Raises ServingError."""
        now = _now()
        if now - self._held_at >= HOLD_S:
            self._held_at = now
            if not await self._replicas.hold():
                self._stop()
                return
            await self._take_over()
        rounds = self._rounds
        if rounds is None:
            return
        if now - self._seen_at >= min(VIEW_S, self._config.every_s / 4):
            await self._see(rounds)
        while (visit := rounds.next_visit(_now())) is not None:
            task = asyncio.create_task(self._visit(rounds, visit))
            self._visits.add(task)
            task.add_done_callback(self._visits.discard)
        while rounds.skipped:
            PROBES.labels(rounds.skipped.pop().path, ProbeResult.SKIPPED).inc()
        await self._tell_quarantine(rounds)

    async def _take_over(self) -> None:
        """Begin to probe, unless this replica does already, and do what operators have asked other replicas for."""
        rounds = self._rounds
        if rounds is None:
            reference, origin = await self._kept_reference()
            rounds = ProbeRounds(self._config, list(self._prompts), reference, origin, random.random)
            await self._see(rounds)
            rounds.adopt()
            self._rounds = rounds
            logger.info("this ingress replica probes the quality of %d workers", len(rounds.workers))
        await self._references.share()
        for command in await self._replicas.take():
            await self._obey(rounds, command)
        await self._show(rounds)

    def _stop(self) -> None:
        """Another replica probes, or none does."""
        for visit in self._visits:
            visit.cancel()
        if self._rounds is not None:
            self._rounds = None
            set_scores({})
            set_last_probes({})
            set_reference(None)
            QUARANTINED.set(0)

    async def _kept_reference(self) -> tuple[Reference | None, str]:
        """The one that counts, and its origin: that of the file, unless an operator has had another one learned in its
        place.
        """
        given, kept = self._given_reference, await self._references.load(self._fingerprint)
        if given is not None and (kept is None or kept.replaces != given.digest):
            return given, "file"
        return (kept if kept is not None and kept.answers else None), "learned"

    async def _see(self, rounds: ProbeRounds) -> None:
        """Raises ServingError."""
        view = await self._ports.cluster.view()
        self._seen_at = _now()
        rounds.see(view, self._seen_at)
        self._ports.asker.keep(rounds.workers.keys())
        await self._learn(rounds)
        self._export(rounds)

    async def _visit(self, rounds: ProbeRounds, visit: Visit) -> None:
        began_at, found = _now(), VisitResult(ProbeResult.FAILED)
        assert self._visitor is not None
        try:
            if rounds.reference is None:
                found = await self._visitor.learn(visit)
            else:
                found = await self._visitor.compare(visit, rounds.reference)
        except Exception:  # a defect must not end the probes
            logger.exception("a visit of %s on path %s failed", *visit.target)
        finally:
            rounds.ended(visit, found, began_at, _now())
        if found.result is ProbeResult.DIFFERS:
            logger.warning("worker %s differs from the reference on path %s: %s", *visit.target, found.difference)
        await self._learn(rounds)
        self._export(rounds)
        await self._show(rounds)

    async def _learn(self, rounds: ProbeRounds) -> None:
        """Keep the reference if one has just been learned."""
        learned = rounds.learned(self._fingerprint, self._model, _now(), time.time())
        if learned is not None:
            logger.info("a reference of %d prompts is learned from the workers' answers", len(learned.answers))
            await self._references.save(learned, self._given_reference)

    async def _obey(self, rounds: ProbeRounds, command: ProbeCommand) -> None:
        worker = command.worker if command.worker in rounds.workers else None
        logger.warning("an operator asks the quality probe: %s %s", command.kind, worker or "")
        if command.kind is CommandKind.LEARN:
            forgotten = Reference(fingerprint=self._fingerprint, model=self._model, learned_at=time.time(), answers={})
            await self._references.save(forgotten, self._given_reference)
        rounds.obey(command, _now())

    async def _tell_quarantine(self, rounds: ProbeRounds) -> None:
        """Raises ServingError."""
        quarantined = rounds.verdicts.told
        if quarantined.keys() != self._told.keys():
            self._told_at = float("-inf")
            if not self._config.quarantines:
                _log_changes(self._told, quarantined)
            self._told = dict(quarantined)
        if self._config.quarantines and _now() - self._told_at >= TELL_S:
            await self._ports.quarantine(WorkerQuarantine(self._told, self._replicas.lease))
            self._told_at = _now()

    def _export(self, rounds: ProbeRounds) -> None:
        if rounds is self._rounds or self._rounds is None:
            set_scores({(target.worker, target.path): score for target, score in rounds.verdicts.scores.items()})
            to_unix_time = time.time() - _now()
            set_last_probes({(of.worker, of.path): at + to_unix_time for of, at in rounds.answered_at.items()})
            set_reference(rounds.origin, is_usable=rounds.is_reference_usable)
            QUARANTINED.set(len(rounds.verdicts.quarantined))

    async def _show(self, rounds: ProbeRounds) -> None:
        await self._replicas.show(rounds.view(self._replicas.replica, _now(), time.time()))

    @property
    def _all_prompts(self) -> list[ProbePrompt]:
        return self._given.prompts if self._given is not None else OWN_PROMPTS


async def _tokens_of(prompt: ProbePrompt, renderer: PromptRenderer) -> list[int]:
    """Raises ServingError."""
    if prompt.text is not None:
        return await renderer.tokens_of_text(prompt.text)
    turns = prompt.messages or ()
    return await renderer.tokens_of_chat([{"role": turn.role, "content": turn.content} for turn in turns])


def _log_changes(before: Mapping[WorkerId, str], now: Mapping[WorkerId, str]) -> None:
    for worker in now.keys() - before.keys():
        logger.error("worker %s answers wrongly, and gets requests since quarantine is off: %s", worker, now[worker])
    for worker in before.keys() - now.keys():
        logger.warning("worker %s answers as the reference again", worker)


def _now() -> float:
    return asyncio.get_running_loop().time()
