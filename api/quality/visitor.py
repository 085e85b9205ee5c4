"""Visitor: probes a target once. It asks for prompts, compares the answers with the reference, and counts the results.

A prompt is asked twice with one salt that nothing else has: first the prompt is computed, and then its KV blocks come
from caches. Without a reference, all prompts are asked once, and the answers are what a reference is learned from.
"""

import secrets
from collections.abc import Mapping, Sequence
from math import isfinite

import msgspec

from api.quality.asking import Asker, ProbeAnswer
from api.quality.comparison import ProbeResult, compared
from api.quality.probe_set import Reference
from api.quality.visit import Visit, VisitResult
from cluster.messages.ids import Path
from cluster.messages.quality import Answer
from cluster.metrics.quality import PROBES
from kvtransfer.tolerance import LearnedTolerance
from router.quarantine.quarantine import MAX_ENGINES_LOST

SALT = "baton-probe:"


class Visitor:
    def __init__(self, asker: Asker, prompts: Mapping[str, list[int]]) -> None:
        """`prompts`: the tokens of each prompt."""
        self._asker = asker
        self._prompts = prompts
        self._tolerances = {path: LearnedTolerance(rounds_coarsely=True) for path in Path}
        self._engines_lost: dict[str, int] = {}

    async def compare(self, visit: Visit, reference: Reference) -> VisitResult:
        """Ask for the prompt whose turn it is."""
        names = [name for name in reference.answers if name in self._prompts and self._is_harmless(name)]
        if not names:
            return VisitResult(ProbeResult.SKIPPED)
        name = names[visit.number % len(names)]
        return await self._ask_twice(visit, name, reference.answers[name])

    async def learn(self, visit: Visit) -> VisitResult:
        """Ask for all prompts."""
        answers: dict[str, Answer] = {}
        for name in filter(self._is_harmless, self._prompts):
            asked = await self._ask(visit, name, _new_salt())
            if asked.answer is None:
                PROBES.labels(visit.target.path, asked.why_not).inc()
                return VisitResult(asked.why_not, is_overload=asked.is_overload)
            answers[name] = asked.answer
        return VisitResult(ProbeResult.AGREES, answers=answers)

    def names(self) -> Sequence[str]:
        """The prompts that may be asked for."""
        return list(filter(self._is_harmless, self._prompts))

    async def _ask_twice(self, visit: Visit, name: str, right: Answer) -> VisitResult:
        worst, salt = VisitResult(ProbeResult.AGREES), _new_salt()
        path, tolerance = visit.target.path, self._tolerances[visit.target.path]
        for is_cached in (False, True):
            asked = await self._ask(visit, name, salt)
            if asked.answer is None:
                PROBES.labels(path, asked.why_not).inc()
                return VisitResult(asked.why_not, is_overload=asked.is_overload) if not is_cached else worst
            seen = compared(name, right, asked.answer, tolerance.value)
            PROBES.labels(path, seen.result).inc()
            if seen.result.is_right and isfinite(seen.distance):
                tolerance.observe(seen.distance)
            if seen.difference is not None:
                where = msgspec.structs.replace(seen.difference, is_cached=is_cached, beside=visit.beside)
                worst = VisitResult(seen.result, where)
            if not seen.result.is_right:
                return worst
        return worst

    async def _ask(self, visit: Visit, name: str, salt: str) -> ProbeAnswer:
        asked = await self._asker.ask(visit.target.path, visit.pinned, self._prompts[name], salt)
        if asked.num_engines_lost:
            self._engines_lost[name] = self._engines_lost.get(name, 0) + asked.num_engines_lost
        return asked

    def _is_harmless(self, name: str) -> bool:
        """A prompt with which engines were lost is not asked for again."""
        return self._engines_lost.get(name, 0) < MAX_ENGINES_LOST


def _new_salt() -> str:
    return f"{SALT}{secrets.token_hex(16)}"
