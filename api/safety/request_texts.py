"""The texts of a request that reach the model, and the request with masks in its texts. Pure.

Every string of a message counts, whatever field it is in, and so do unusual names of fields: a template may show them.
The strings of one message are one text, line by line. The parts of a content are a text of their own besides, because
templates show them without what is between them.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
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
_FIELD_NAMES = frozenset(
    {"arguments", "content", "description", "enum", "function", "id", "items", "name", "parameters", "properties"}
    | {"required", "role", "strict", "text", "tool_call_id", "tool_calls", "type"}
)
"""Names of fields that are no texts."""
MANY_PARTS = 200
"""Messages, or parts of one, that are walked through on the event loop. More holds up other requests for longer; fewer
costs small requests a switch of threads.
"""
Place = tuple[str | int, ...]
"""Where a value is in the body: a field, or a field and a number."""
Decode = Callable[[Sequence[int]], str]
"""The text of tokens."""


class InputText(NamedTuple):
    role: TextRole
    strings: tuple[str, ...]
    place: Place
    numbers: tuple[int, ...]
    """Which strings of the value at this place they are, in the order of `_strings`."""

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


def texts_in(body: Mapping[str, Any], decode: Decode) -> list[InputText]:
    """The texts of a validated body of a chat or a text completion. `decode`: for a prompt that consists of tokens."""
    found: list[InputText] = []
    for number, message in enumerate(_list(body.get("messages"))):
        strings, parts = [*_strings(message)], [*_numbers_of_parts(message)]
        at, role = ("messages", number), _role(message)
        found.append(InputText(role, tuple(strings), at, tuple(range(len(strings)))))
        if 1 < len(parts) < len(strings):
            found.append(InputText(role, tuple(strings[part] for part in parts), at, tuple(parts)))
    for field, role in _FIELDS.items():
        strings = [*_strings(body.get(field))]
        found.append(InputText(role, tuple(strings), (field,), tuple(range(len(strings)))))
    for place, prompt in _prompts(body):
        strings = [decode(prompt)] if _are_tokens(prompt) else [*_strings(prompt)]
        found.append(InputText(TextRole.USER, tuple(strings), place, tuple(range(len(strings)))))
    return [text for text in found if any(text.strings)]


def with_masks(body: Mapping[str, Any], masks: Mapping[InputText, Sequence[Mask]], decode: Decode) -> dict[str, Any]:
    """A copy of the body with masks in its texts. A prompt of tokens becomes a text where it has a mask. `masks`: of
    each text, by their beginnings.
    """
    by_place: dict[Place, dict[int, list[Mask]]] = defaultdict(lambda: defaultdict(list))
    for text, inside in masks.items():
        for number, mask in _by_string(text, inside):
            by_place[text.place][number].append(mask)
    changed = dict(body)
    for field in {str(place[0]) for place in by_place}:
        if isinstance(changed[field], list):
            changed[field] = list(changed[field])
    for place, of_strings in by_place.items():
        shown = {
            number: sorted(inside, key=lambda mask: (mask.begin, -mask.end)) for number, inside in of_strings.items()
        }
        if len(place) > 1:
            changed[str(place[0])][place[1]] = _shown(changed[str(place[0])][place[1]], place, shown, decode)
        else:
            changed[str(place[0])] = _shown(changed[str(place[0])], place, shown, decode)
    prompts = changed.get("prompt")
    if isinstance(prompts, list) and any(isinstance(prompt, str) for prompt in prompts):
        changed["prompt"] = [prompt if isinstance(prompt, str) else decode(prompt) for prompt in prompts]
    return changed


def _by_string(text: InputText, masks: Sequence[Mask]) -> Iterator[tuple[int, Mask]]:
    """The masks of each string of a text, in its own characters. A mask over two strings is shown in the first one."""
    position, begin = 0, 0
    for mask in masks:
        while begin + len(text.strings[position]) < mask.begin:
            begin, position = begin + len(text.strings[position]) + 1, position + 1
        at, of = begin, position
        label = mask.mask
        while of < len(text.strings) and at < mask.end:
            length = len(text.strings[of])
            inside = Mask(max(0, mask.begin - at), min(length, mask.end - at), label)
            if inside.end > inside.begin:
                yield text.numbers[of], inside
                label = ""
            at, of = at + length + 1, of + 1


def _shown(value: Any, place: Place, masks: Mapping[int, Sequence[Mask]], decode: Decode) -> Any:
    if place[0] == "prompt" and _are_tokens(value):
        return masked(decode(value), 0, masks.get(0, ()))
    return _replaced(value, count(), masks)


def _role(message: Any) -> TextRole:
    role = message.get("role") if isinstance(message, dict) else None
    return _ROLES.get(role, TextRole.USER) if isinstance(role, str) else TextRole.USER


def _prompts(body: Mapping[str, Any]) -> list[tuple[Place, Any]]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not _are_tokens(prompt):
        return [(("prompt", number), one) for number, one in enumerate(prompt)]
    return [(("prompt",), prompt)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _numbers_of_parts(message: Any) -> Iterator[int]:
    """Which strings of a message are the texts of the parts of its content."""
    number = 0
    for key, value in message.items() if isinstance(message, dict) else ():
        number += key not in _FIELD_NAMES
        if key != "content" or not isinstance(value, list):
            number += sum(1 for _ in _strings(value, key))
            continue
        for part in value:
            if not isinstance(part, dict):
                number += sum(1 for _ in _strings(part, key))
                continue
            for name, inner in part.items():
                number += name not in _FIELD_NAMES
                if name == "text" and isinstance(inner, str):
                    yield number
                number += sum(1 for _ in _strings(inner, name))


def _strings(value: Any, field: str = "") -> Iterator[str]:
    if isinstance(value, str):
        if value not in _NAMES.get(field, ()):
            yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in _FIELD_NAMES:
                yield key
            yield from _strings(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, field)


def _replaced(value: Any, numbers: Iterator[int], masks: Mapping[int, Sequence[Mask]], field: str = "") -> Any:
    """The value with masks in its strings, which are numbered in the order of `_strings`."""
    if isinstance(value, str):
        return value if value in _NAMES.get(field, ()) else masked(value, 0, masks.get(next(numbers), ()))
    if isinstance(value, dict):
        changed: dict[str, Any] = {}
        for key, inner in value.items():
            name = key if key in _FIELD_NAMES else masked(key, 0, masks.get(next(numbers), ()))
            changed[name] = _replaced(inner, numbers, masks, key)
        return changed
    if isinstance(value, list):
        return [_replaced(inner, numbers, masks, field) for inner in value]
    return value


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(token, int) for token in value)
