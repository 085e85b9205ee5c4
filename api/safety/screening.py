"""One request under its policy: what comes in is screened before it counts, and what goes out before it leaves.

The stages that cost little run first, on the event loop for short inputs and in a thread for long ones. The guard is
asked about what they leave in doubt. If the policy is not strict, a verdict that takes time is awaited by the answer
instead of by the prompt (`input_verdict`).
"""

import asyncio
import logging
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple

from api.safety.answer_form import AnswerForm, answer_form
from api.safety.answer_screen import AnswerScreen, GuardWindow
from api.safety.audit.decision_record import DecisionRecord, JudgedTexts
from api.safety.audit.event import Direction, SafetyAction, fingerprint
from api.safety.judge import Judged, judged_text
from api.safety.policy import OnPersonalData, Runs, SafetyStage
from api.safety.policy_folder import PolicyInForce
from api.safety.request_texts import InputText, has_many_parts, texts_in, with_masks
from api.safety.scans.rules import TextRole
from api.safety.scored_text import LONG_INPUT, InThread, Scored, read_whole, scored_by
from api.safety.stages import GuardNotes, Stages, Tokens, ask_guard
from cluster.errors import UNFORESEEN, ContentFiltered, InvalidRequest, ServingError, StateUnavailable

logger = logging.getLogger("baton.safety")

CALLS_AT_ONCE = 8
"""Texts of one request that the guard is asked about at a time. More lets one request take the guard from others; fewer
judges long chats later.
"""
Digests = Mapping[InputText, bytes]
"""Texts, and what each is known by once it is cleared."""


class ScreenedAnswer(NamedTuple):
    """One sequence of the answer."""

    screen: AnswerScreen
    notes: GuardNotes


class Screening:
    def __init__(
        self,
        of_input: PolicyInForce,
        of_output: PolicyInForce,
        stages: Stages,
        tokens: Tokens,
        cleared: MutableMapping[bytes, None],
        record: DecisionRecord,
    ) -> None:
        """`cleared`: digests of texts that have passed unchanged."""
        self._of_input = of_input
        self._of_output = of_output
        self._stages = stages
        self._tokens = tokens
        self._cleared = cleared
        self._record = record
        self.input_verdict: asyncio.Task[ServingError | None] | None = None
        """The error that ends the request, or None if it may be answered. Nothing may leave before it is there."""
        self.tells: str | None = None
        """What the answer calls that which has screened it; None if it does not tell what was found."""
        self.is_for_people = True
        """Whether a client reads the answer, and not Baton itself."""
        self._form = AnswerForm(is_prose=False, continues_prompt=False)
        self._whole = ""
        """All texts of the input, those that were cleared before included."""
        self._answers: list[ScreenedAnswer] = []
        self._input_scored = Scored({}, set(), "")

    async def read(self, body: dict[str, Any], in_thread: InThread[Any]) -> dict[str, Any]:
        """The body as the model may see it. Raises ContentFiltered, InvalidRequest for more than the model could read,
        and StateUnavailable if the policy demands a record that cannot be kept.
        """
        policy = self._of_input.policy
        self._record.check(policy)
        self._form = answer_form(body)
        new = await in_thread(lambda: self._new(body)) if has_many_parts(body) else self._new(body)
        is_long = sum(len(string) for text in new for string in text.strings) > LONG_INPUT
        masks_input = any(on is not OnPersonalData.ALLOW for on in policy.personal_data_in.values())
        if is_long and not masks_input and not policy.is_strict:
            self.input_verdict = asyncio.create_task(self._verdict(new, in_thread))
            return body
        judged = await self._judged(new, in_thread if is_long else None)
        if any(one.judge.blocked for one in judged.values()):
            raise await self._refused(judged, SafetyAction.BLOCKED, GuardNotes())
        if self._asks_guard(judged):
            self.input_verdict = asyncio.create_task(self._guard_verdict(new, judged))
            if policy.is_strict and (error := await self.input_verdict) is not None:
                raise error
        else:
            await self._passed(new, judged, GuardNotes())
        masks = {text: one.text.masks for text, one in judged.items() if one.text.masks}
        if not masks:
            return body
        decode, is_small = self._tokens.decode, not (is_long or has_many_parts(body))
        return with_masks(body, masks, decode) if is_small else await in_thread(lambda: with_masks(body, masks, decode))

    @property
    def continues_prompt(self) -> bool:
        """Whether the answer goes on in the middle of the prompt's text."""
        return self._form.continues_prompt

    def answer(self, context: str) -> ScreenedAnswer:
        """A sequence of the answer, to be screened. `context`: the end of the prompt, if the answer continues it."""
        stages, policy = self._stages, self._of_output.policy
        judged = judged_text(policy, self._of_output.shadow, TextRole.ANSWER, stages.rules, stages.classifier, context)
        disclaimers = stages.rules.disclaimers if self._form.is_prose and self.is_for_people else {}
        screen = AnswerScreen(
            judged,
            policy,
            stages.guard is not None,
            self._tokens.encode,
            context=context,
            disclaimers={topic: disclaimers[topic] for topic in policy.disclaimers if topic in disclaimers},
        )
        self._answers.append(ScreenedAnswer(screen, GuardNotes()))
        return self._answers[-1]

    def abandon(self) -> None:
        """The request is over: nobody waits for the verdict on its input."""
        if self.input_verdict is not None:
            self.input_verdict.cancel()

    @property
    def cut_sequences(self) -> list[int]:
        """The sequences of a request with one prompt that were cut."""
        return [number for number, answer in enumerate(self._answers) if answer.screen.is_cut]

    async def is_blocked(self, answer: ScreenedAnswer, window: GuardWindow) -> bool:
        """Whether the guard, or its absence, blocks a window."""
        policy, notes = self._of_output.policy, answer.notes
        await ask_guard(self._stages, window.text, policy, notes, TextRole.ANSWER)
        return bool(notes.blocked) or notes.fails_closed(policy)

    def scored(self) -> tuple[Scored, list[Scored]]:
        """What was found in the input, and in each sequence of the answer."""
        return self._input_scored, [scored_by([screen.judged.judge], notes) for screen, notes in self._answers]

    async def finish(self, answer: ScreenedAnswer) -> None:
        """Put on record what was done about a sequence that is over. Raises StateUnavailable if the policy demands a
        record that cannot be kept: then the end of the sequence must not leave.
        """
        screen, notes = answer
        if notes.is_recorded:
            return
        notes.is_recorded = True
        judge = screen.judged.judge
        found = JudgedTexts([judge], notes, screen.text_sha256, screen.kept_text)
        cut = SafetyAction.CUT if judge.blocked | notes.blocked else SafetyAction.FAILED_CLOSED
        action = cut if screen.is_cut else found.passing_action
        await self._record.keep(Direction.OUTPUT, action, self._of_output, found)

    def _new(self, body: dict[str, Any]) -> Digests:
        """The texts that have not been cleared under this policy and these lists. An answer that tells what was found
        has all texts screened. May run in a thread. Raises InvalidRequest.
        """
        texts = texts_in(body, self._tokens.decode)
        if sum(len(string) for text in texts for string in text.strings) > self._tokens.most_characters:
            most = f"{self._tokens.most_characters:,} characters"
            raise InvalidRequest(f"the request has more than {most}", None, "context_length_exceeded")
        self._whole = "\n".join(text.text for text in texts)
        version = f"{self._of_input.cache_version}/{self._stages.rules_version}"
        digests = {text: text.digest(version) for text in texts}
        return {text: digest for text, digest in digests.items() if self.tells or digest not in self._cleared}

    async def _verdict(self, texts: Digests, in_thread: InThread[Any]) -> ServingError | None:
        try:
            judged = await self._judged(texts, in_thread)
            if any(one.judge.blocked for one in judged.values()):
                return await self._refused(judged, SafetyAction.BLOCKED, GuardNotes())
        except asyncio.CancelledError:
            await self._broken_off()
            raise
        except Exception as error:
            return await self._unscreened(error)
        return await self._guard_verdict(texts, judged)

    async def _guard_verdict(self, texts: Digests, judged: Mapping[InputText, Judged]) -> ServingError | None:
        notes, policy = GuardNotes(), self._of_input.policy
        try:
            asked = [text for text, one in judged.items() if self._asks_guard({text: one})]
            for begin in range(0, len(asked), CALLS_AT_ONCE):
                now = asked[begin : begin + CALLS_AT_ONCE]
                await asyncio.gather(*(ask_guard(self._stages, one.text, policy, notes, one.role) for one in now))
                if notes.blocked or notes.fails_closed(policy):
                    break
            if notes.blocked:
                return await self._refused(judged, SafetyAction.BLOCKED, notes)
            if notes.fails_closed(policy):
                return await self._refused(judged, SafetyAction.FAILED_CLOSED, notes)
            await self._passed(texts, judged, notes)
        except asyncio.CancelledError:
            await self._broken_off()
            raise
        except Exception as error:
            return await self._unscreened(error)
        return None

    async def _judged(self, texts: Digests, in_thread: InThread[Any] | None) -> dict[InputText, Judged]:
        """Up to the first text that is blocked. On the event loop if there is no thread for it."""
        stages, in_force, judged = self._stages, self._of_input, dict[InputText, Judged]()
        for text in texts:
            one = judged_text(in_force.policy, in_force.shadow, text.role, stages.rules, stages.classifier)
            judged[text] = one
            await read_whole(one, text.text, in_thread)
            if one.judge.blocked:
                break
        return judged

    def _asks_guard(self, judged: Mapping[InputText, Judged]) -> bool:
        runs = self._of_input.policy.stage(SafetyStage.GUARD).runs
        if self._stages.guard is None or runs is Runs.NEVER:
            return False
        return any(runs is Runs.ALWAYS or one.judge.doubts for one in judged.values())

    async def _refused(
        self, judged: Mapping[InputText, Judged], action: SafetyAction, notes: GuardNotes
    ) -> ContentFiltered:
        found = self._found(judged, notes)
        event = await self._record.keep(Direction.INPUT, action, self._of_input, found)
        blocked = sorted(notes.blocked.union(*(judge.blocked for judge in found.judges)))
        why = f"it was flagged for {', '.join(blocked)}" if blocked else "it could not be screened now"
        message = f"the safety policy does not allow this request: {why} (event {event})"
        field = [*judged][-1].place[0]
        return ContentFiltered(message, str(field), event)

    async def _passed(self, texts: Digests, judged: Mapping[InputText, Judged], notes: GuardNotes) -> None:
        for text, one in judged.items():
            if not (one.judge.masked or one.judge.would_block or notes.error):
                self._cleared[texts[text]] = None
        found = self._found(judged, notes)
        self._input_scored = scored_by(found.judges, notes)
        await self._record.keep(Direction.INPUT, found.passing_action, self._of_input, found)

    def _found(self, judged: Mapping[InputText, Judged], notes: GuardNotes) -> JudgedTexts:
        """The hash is that of all texts. What may be kept is what the guard has blocked, or what was judged last: what
        the other stages have blocked.
        """
        last = [*judged][-1].text if judged else None
        kept = last if notes.about is None else notes.about
        return JudgedTexts([one.judge for one in judged.values()], notes, fingerprint(self._whole), kept)

    async def _broken_off(self) -> None:
        """The request has ended before the verdict on its input. Nothing has left."""
        found = JudgedTexts([], GuardNotes(), fingerprint(self._whole), None, "the request ended before the verdict")
        with suppress(StateUnavailable):
            await self._record.keep(Direction.INPUT, SafetyAction.NOT_SCANNED, self._of_input, found)

    async def _unscreened(self, error: Exception) -> ServingError:
        """What a request ends with whose input could not be screened."""
        if isinstance(error, ServingError):
            return error
        logger.error("the input of a request was not screened", exc_info=error)
        found = JudgedTexts([], GuardNotes(), fingerprint(self._whole), None, type(error).__name__)
        try:
            await self._record.keep(Direction.INPUT, SafetyAction.FAILED_CLOSED, self._of_input, found)
        except StateUnavailable as unrecorded:
            return unrecorded
        return ServingError(UNFORESEEN)
