"""Visitor: probes a target once. It asks for prompts, compares the answers with the reference, and counts the results.

A prompt is asked twice with one salt that nothing else has: first the prompt is computed, and then its KV blocks come
from caches. Without a reference, all prompts are asked, and the answers are what a reference is learned from.
"""

import secrets
from collections.abc import Mapping

import msgspec

from api.quality.asking import Asker, ProbeAnswer
from api.quality.comparison import ProbeResult, compared
from api.quality.probe_set import Reference
from api.quality.visit import Visit, VisitResult
from cluster.messages.quality import Answer
from cluster.metrics.quality import PROBES
from router.quarantine.quarantine import MAX_ENGINES_LOST

SALT = "baton-probe:"


class Visitor:
    def __init__(self, asker: Asker, prompts: Mapping[str, list[int]]) -> None:
        """`prompts`: the tokens of each prompt."""
        self._asker = asker
        self._prompts = prompts
        self._engines_lost: dict[str, int] = {}

    async def compare(self, visit: Visit, reference: Reference) -> VisitResult:
        """Ask for the prompt whose turn it is."""
        names = [name for name in reference.answers if name in self._prompts and self._is_harmless(name)]
        if not names:
            return VisitResult(ProbeResult.SKIPPED)
        name = names[visit.number % len(names)]
        found = await self._ask_twice(visit, name, reference.answers[name], reference.tolerance(visit.target.path))
        return found._replace(prompt=name, num_prompts=len(names))

    async def learn(self, visit: Visit) -> VisitResult:
        """Ask for all prompts."""
        answers: dict[str, Answer] = {}
        repeats: dict[str, Answer] = {}
        for name in filter(self._is_harmless, self._prompts):
            salt = _new_salt()
            asked = await self._ask(visit, name, salt)
            if asked.answer is None:
                PROBES.labels(visit.target.path, asked.why_not).inc()
                return VisitResult(asked.why_not, is_overload=asked.is_overload)
            answers[name] = asked.answer
            again = await self._ask(visit, name, salt)
            if again.answer is not None:
                repeats[name] = again.answer
        return VisitResult(ProbeResult.AGREES, answers=answers, repeats=repeats)

    async def _ask_twice(self, visit: Visit, name: str, right: Answer, tolerance: float) -> VisitResult:
        """The worse of two answers. The second one does not count if it does not come. `tolerance`: largest distance
        that counts as rounding, in nats.
        """
        salt, path = _new_salt(), visit.target.path
        result, difference = ProbeResult.AGREES, None
        for is_cached in (False, True):
            asked = await self._ask(visit, name, salt)
            if asked.answer is None:
                PROBES.labels(path, asked.why_not).inc()
                if not is_cached:
                    return VisitResult(asked.why_not, is_overload=asked.is_overload)
                break
            seen = compared(name, right, asked.answer, tolerance)
            PROBES.labels(path, seen.result).inc()
            if seen.difference is not None:
                result = seen.result
                difference = msgspec.structs.replace(seen.difference, is_cached=is_cached, beside=visit.beside)
            if not seen.result.is_right:
                break
        return VisitResult(result, difference)

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
