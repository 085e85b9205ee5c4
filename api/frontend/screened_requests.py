"""Where requests meet the safety policy of their tenant: before vLLM renders them, and when their answers say what was
found. What of a generated text leaves is in api/frontend/release.py.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from api.frontend.checking_thread import in_checking_thread
from api.frontend.generation import Call
from api.identity.caller import NO_KEY
from api.safety.pieces import CUT
from api.safety.policy import Threshold
from api.safety.review import Appealed, Review
from api.safety.scored_text import Scored
from api.safety.screener import AskedThresholds, Screener
from api.safety.screening import Screening
from api.safety.verdict import Category
from api.wire.safety.moderation_results import NotModerated, completion_moderation, moderation_chunk, result_of
from api.wire.safety.safety_settings import MODERATION, SETTINGS, SafetySettings, settings_in, without_settings
from api.wire.sse import DONE
from cluster.errors import InvalidRequest, Overloaded

RETRY_AFTER_S = 2.0
"""When a client may ask again after a stage has failed, in seconds. Sooner meets a guard that is still away; later
waits for one that is back.
"""
_FLAGGED = dict.fromkeys(Category, Threshold.MEDIUM)
"""The thresholds of a request whose `moderation` blocks what is flagged."""


class ScreenedRequests:
    def __init__(self, screener: Screener | None) -> None:
        self._screener = screener

    async def read(self, body: Any, call: Call, validated: Callable[[Any], Awaitable[Any]]) -> Any:
        """The request as the model may see it, validated. Raises InvalidRequest (ContentFiltered for what the policy
        does not allow).
        """
        settings = settings_in(body)
        if settings is not None:
            body = without_settings(body)
        request = await validated(body)
        if settings is not None and self._screener is None:
            field = SETTINGS if settings.moderation is None else MODERATION
            raise InvalidRequest("this service screens nothing", field, "unsupported_parameter")
        if self._screener is None:
            return request
        call.screening = self._screener.screening(call.tenant or NO_KEY, call.id, _asked(settings))
        if call.screening is None:
            return request
        call.screening.is_for_people = not call.is_own
        if settings is not None and settings.moderation is not None:
            call.screening.tells = self._screener.version
        shown = await call.screening.read(body, in_checking_thread)
        return request if shown is body else await validated(shown)

    async def answered(self, answering: Awaitable[Any], call: Call) -> Any:
        """The answer, with what it has to say of the screening. Raises what `answering` raises."""
        screening = call.screening
        if screening is None:
            return await answering
        try:
            answer = await answering
        except BaseException:
            screening.abandon()
            raise
        if not isinstance(answer, dict):
            return answer if screening.tells is None else _with_moderation(answer, screening, screening.tells)
        for number in screening.cut_sequences:  # vLLM calls a cut that comes after a tool call a tool call
            if number < len(answer["choices"]) and answer["choices"][number].get("message", {}).get("tool_calls"):
                answer["choices"][number]["finish_reason"] = CUT
        if screening.tells is not None:
            answer[MODERATION] = _moderation(screening, screening.tells)
        return answer

    async def moderated(self, tenant: str, texts: Sequence[str]) -> tuple[str, list[Scored]]:
        """What has screened the texts, and what was found in each. Raises InvalidRequest if nothing is screened here,
        Overloaded if a stage has failed.
        """
        if self._screener is None:
            raise InvalidRequest("this service screens nothing", None, "unsupported_operation")
        scored = await self._screener.scored(tenant, texts, in_checking_thread)
        if any(one.error for one in scored):
            raise Overloaded("a stage of the screening has failed", RETRY_AFTER_S)
        return self._screener.version, scored

    async def reviewed(self, tenant: str, appealed: Appealed) -> Review:
        """What all stages find now in a text that was withheld."""
        if self._screener is None:
            return Review(error="this service screens nothing any more")
        return await self._screener.reviewed(tenant, appealed, in_checking_thread)

    async def close(self) -> None:
        if self._screener is not None:
            await self._screener.close()


def _asked(settings: SafetySettings | None) -> AskedThresholds:
    if settings is None:
        return AskedThresholds({}, {})
    if Category.PERSONAL_DATA in settings.thresholds:
        message = "personal data has no threshold: the policy says what is done about each kind"
        raise InvalidRequest(message, SETTINGS, "unsupported_value")
    own = {Category(name): Threshold(value) for name, value in settings.thresholds.items()}
    moderation = settings.moderation
    blocks_input, blocks_output = (moderation.blocks_input, moderation.blocks_output) if moderation else (False, False)
    return AskedThresholds(_tightest(own, blocks_input), _tightest(own, blocks_output))


def _tightest(own: dict[Category, Threshold], blocks: bool) -> dict[Category, Threshold]:
    if not blocks:
        return own
    return {category: asked.tightened(own.get(category, Threshold.OFF)) for category, asked in _FLAGGED.items()}


async def _with_moderation(
    frames: AsyncGenerator[str | bytes, None], screening: Screening, model: str
) -> AsyncGenerator[str | bytes, None]:
    """The frames of a stream, with a chunk of what was found before its usage or its end."""
    is_told, first = False, None
    async with aclosing(frames):
        async for frame in frames:
            text = frame if isinstance(frame, bytes) else frame.encode()
            is_chunk = text.startswith(b'data: {"id"')
            if first is None and is_chunk:
                first = msgspec.json.decode(text.removeprefix(b"data: "))
            is_last = frame == DONE or (is_chunk and b'"choices":[]' in text)
            if is_last and not is_told and first is not None:
                chunk = moderation_chunk(first, _moderation(screening, model))
                yield b"data: " + msgspec.json.encode(chunk) + b"\n\n"
                is_told = True
            yield frame


def _moderation(screening: Screening, model: str) -> dict[str, Any]:
    of_input, of_output = screening.scored()
    return completion_moderation(model, _results([of_input]), _results(of_output))


def _results(scored: Sequence[Scored]) -> list[dict[str, Any]] | NotModerated:
    if any(one.error for one in scored):
        return NotModerated("not_scanned", "a stage of the screening has failed")
    return [result_of(one.scores, one.flagged) for one in scored]
