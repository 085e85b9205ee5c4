"""The texts of a request that reach the model, and the request with other texts in their places. Pure.

Every string of a message counts, whatever field it is in: a template may show any of them. The strings of one message
are one text, line by line, so that nothing hides between the parts of a content.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from api.safety.scans.rules import TextRole
from api.safety.scans.screened_text import Mask, masked

_ROLES = {
    "system": TextRole.SYSTEM,
    "developer": TextRole.SYSTEM,
    "user": TextRole.USER,
    "assistant": TextRole.ASSISTANT,
    "tool": TextRole.TOOL,
    "function": TextRole.TOOL,
}
_FIELDS = {
    "suffix": TextRole.USER,
    "tools": TextRole.SYSTEM,
    "documents": TextRole.DOCUMENT,
    "chat_template_kwargs": TextRole.SYSTEM,
}
"""Fields of a body beside its messages and its prompt that can reach the model."""
_NAMES = {"role": frozenset(_ROLES), "type": frozenset({"text", "input_text", "output_text", "function", "object"})}
"""Strings that are no texts, by their field. Any other string there is one."""


MANY_PARTS = 200
"""Messages, or parts of one, that are walked through on the event loop. More holds up other requests for longer; fewer
costs small requests a switch of threads.
"""


class InputText(NamedTuple):
    role: TextRole
    strings: tuple[str, ...]
    place: tuple[str | int, ...]
    """Where it is in the body."""

    @property
    def text(self) -> str:
        return "\n".join(self.strings)

    def digest(self, version: str) -> bytes:
        """What the text is known by. `version`: of what screens it."""
        digest = hashlib.blake2b(f"{version} {self.role} ".encode(), digest_size=20)
        digest.update(self.text.encode("utf-8", "surrogatepass"))
        return digest.digest()


def has_many_parts(body: Mapping[str, Any]) -> bool:
    """Whether the walk through the body takes more than a millisecond or two."""
    messages, prompt = _list(body.get("messages")), _list(body.get("prompt"))
    contents = (message.get("content") for message in messages[:MANY_PARTS] if isinstance(message, dict))
    parts = [messages, prompt, *(_list(content) for content in contents)]
    others = any(_list(body.get(field)) or isinstance(body.get(field), dict) for field in _FIELDS)
    return others or any(len(part) > MANY_PARTS for part in parts)


def texts_in(body: Mapping[str, Any], decode: Callable[[Sequence[int]], str]) -> list[InputText]:
    """The texts of a validated body of a chat or a text completion. `decode`: the text of tokens, for a prompt that
    consists of them.
    """
    found = [
        InputText(_role(message), tuple(_strings(message)), ("messages", number))
        for number, message in enumerate(_list(body.get("messages")))
    ]
    found += [InputText(role, tuple(_strings(body.get(field))), (field,)) for field, role in _FIELDS.items()]
    prompt = body.get("prompt")
    prompts: list[tuple[Any, tuple[str | int, ...]]] = [(prompt, ("prompt",))]
    if isinstance(prompt, list) and not _are_tokens(prompt):
        prompts = [(one, ("prompt", number)) for number, one in enumerate(prompt)]
    for one, place in prompts:
        strings = (decode(one),) if _are_tokens(one) else tuple(_strings(one))
        found.append(InputText(TextRole.USER, strings, place))
    return [text for text in found if any(text.strings)]


def with_masks(
    body: Mapping[str, Any], masks: Mapping[InputText, Sequence[Mask]], decode: Callable[[Sequence[int]], str]
) -> dict[str, Any]:
    """A copy of the body with masks in its texts. A prompt of tokens becomes a text where it has a mask."""
    changed = dict(body)
    for text, inside in masks.items():
        shown = iter(_masked_strings(text, inside))
        field, *numbers = text.place
        value = changed[str(field)]
        if numbers:
            changed[str(field)] = list(value)
            changed[str(field)][numbers[0]] = _shown(value[numbers[0]], str(field), shown)
        else:
            changed[str(field)] = _shown(value, str(field), shown)
    prompts = changed.get("prompt")
    if isinstance(prompts, list) and any(isinstance(prompt, str) for prompt in prompts):
        changed["prompt"] = [prompt if isinstance(prompt, str) else decode(prompt) for prompt in prompts]
    return changed


def _shown(value: Any, field: str, strings: Iterator[str]) -> Any:
    return next(strings) if field == "prompt" and _are_tokens(value) else _replaced(value, strings)


def _masked_strings(text: InputText, masks: Sequence[Mask]) -> Iterator[str]:
    begin = 0
    for string in text.strings:
        end = begin + len(string)
        yield masked(
            string, begin, [mask._replace(end=min(mask.end, end)) for mask in masks if _meets(mask, begin, end)]
        )
        begin = end + 1


def _meets(mask: Mask, begin: int, end: int) -> bool:
    return mask.begin < end and mask.end > begin


def _role(message: Any) -> TextRole:
    role = message.get("role") if isinstance(message, dict) else None
    return _ROLES.get(role, TextRole.USER) if isinstance(role, str) else TextRole.USER


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _strings(value: Any, field: str = "") -> Iterator[str]:
    if isinstance(value, str):
        if value not in _NAMES.get(field, ()):
            yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, field)


def _replaced(value: Any, strings: Iterator[str], field: str = "") -> Any:
    """The value with its strings replaced, in the order of `_strings`. Tokens are replaced by a string."""
    if isinstance(value, str):
        return value if value in _NAMES.get(field, ()) else next(strings)
    if isinstance(value, dict):
        return {key: _replaced(inner, strings, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, strings, field) for inner in value]
    return value


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(token, int) for token in value)
