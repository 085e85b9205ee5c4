"""Tells the workers which conversations wait for tools: their answers have called some, and will soon go on.

vLLM's serving code finds the calls in the text of an answer, so that only its answers and frames show them.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Iterable
from contextlib import aclosing
from typing import Any
from zlib import crc32

from api.frontend.generation import Call
from api.wire.sse import DONE
from cluster.messages.retention import TOOL_GROUPS

_CALLS = '"tool_calls":[{'
"""What a frame with a part of a call has. In a text, its quotation marks would be escaped."""
_NAME = re.compile(r'"function":\{[^{}]{0,64}?"name":"([^"\\]{1,64})"')
MOST_NAMES = 16
"""Names of tools of one answer that count for its group. More takes time where an answer calls hundreds; fewer mixes
answers that call many.
"""


async def told(answering: Awaitable[Any], call: Call) -> Any:
    """The answer, or its frames. When it is complete and has called tools, the workers are told. Raises what
    `answering` raises.
    """
    try:
        answer = await answering
    except BaseException:
        call.sessions.clear()
        raise
    if not call.has_tools:
        return answer
    if not isinstance(answer, dict):
        return _watched(answer, call)
    calls = [made for choice in answer["choices"] for made in choice.get("message", {}).get("tool_calls") or ()]
    if calls:
        call.awaits_tools(group_of(made.get("function", {}).get("name") or "" for made in calls[:MOST_NAMES]))
    call.sessions.clear()
    return answer


async def _watched(frames: AsyncGenerator[str | bytes, None], call: Call) -> AsyncGenerator[str | bytes, None]:
    """The workers are told before the last frame: who reads a stream may close it there."""
    has_calls, names = False, set[str]()
    try:
        async with aclosing(frames):
            async for frame in frames:
                text = frame if isinstance(frame, str) else frame.decode()
                if _CALLS in text:
                    has_calls = True
                    if len(names) < MOST_NAMES:
                        names.update(_NAME.findall(text))
                elif has_calls and text == DONE:
                    call.awaits_tools(group_of(names))
                yield frame
    finally:
        call.sessions.clear()


def group_of(names: Iterable[str]) -> int:
    """A small number for the tools of these names, whatever their order is."""
    return crc32("\n".join(sorted(set(names))).encode()) % TOOL_GROUPS
