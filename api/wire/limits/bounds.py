"""How much of each thing a request may have, before anything looks at what it is. Pure.

vLLM's request models hold the interpreter while they validate, and vLLM renders on the event loop: a field that may be
endless stops every stream of the replica. The numbers are OpenAI's where OpenAI publishes one. Else they are several
times what clients send, and small enough that no single step takes 50 ms on one core.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from api.wire.limits.depth import MAX_DEPTH
from api.wire.limits.structure import Counts, check_structure, nesting_of
from cluster.errors import InvalidRequest


class Bound(NamedTuple):
    most: int
    """Entries."""
    of: type | None = None
    """What each entry must be, where one that is not would cost vLLM's validation an error for each."""
    longest: int | None = None
    """Characters of an entry."""


LISTS = {
    # OpenAI's limit. Validating 2,048 messages takes 6 ms, 24 ms where each calls a tool
    "messages": Bound(2048),
    # OpenAI's limit. Each is rendered into the prompt, and may become a grammar
    "tools": Bound(128),
    # OpenAI's limit, and vLLM's (VLLM_MAX_STOP_STRINGS): every generated token is compared with each
    "stop": Bound(4, str, 1024),
    # vLLM's limit on their token sequences. Each is tokenized twice on the event loop
    "bad_words": Bound(128, str, 1024),
    # Looked up for each generated token
    "stop_token_ids": Bound(1024, int),
    # No vocabulary is larger
    "allowed_token_ids": Bound(1 << 18, int),
    # vLLM has a lower one of its own; each costs an entry of the answer per token
    "logprob_token_ids": Bound(1024, int),
    # Retrieved texts. They are rendered into the prompt
    "documents": Bound(256, dict),
    # OpenAI knows eight values
    "include": Bound(16, str, 64),
    # OpenAI has one kind
    "context_management": Bound(16),
    "modalities": Bound(8, str, 64),
}

OBJECTS = {
    # Applied at each step of an engine. OpenAI's models take 300
    "logit_bias": 1024,
    "stream_options": 16,
    "reasoning": 16,
}

TEXTS = {"model": 512, "user": 512, "safety_identifier": 512, "prompt_cache_key": 512, "service_tier": 64, "stop": 1024}
"""Characters. OpenAI's limit on the three identifiers is 64; these are echoed and kept."""

MAX_PARTS = 2048
"""Content parts of all messages together, and so many tool calls. Validating as many takes 11 ms and 24 ms, rendering
them as much again.
"""
MAX_NAME = 64
"""Characters of the name of a function, OpenAI's limit."""
MAX_MEMBERS_OF_A_DOCUMENT = 32
MAX_MEMBERS_OF_A_MESSAGE = 64
"""vLLM knows nine. All kinds of message are tried on each."""
MAX_PATTERN, MAX_COMPARED = 64, 512
"""Of `repetition_detection`: tokens of a pattern, and the tokens that its repetitions have together. vLLM compares all
lengths after each token in the engine's own loop: at these limits 1 ms where nearly everything repeats.
"""


def check_bounds(body: Any) -> None:
    """Raises InvalidRequest. What is not there, or is of another type, is for others to judge."""
    if not isinstance(body, dict):
        return
    for name, bound in LISTS.items():
        if isinstance(entries := body.get(name), list):
            _check_list(entries, name, bound)
    for name, most in OBJECTS.items():
        number = len(members) if isinstance(members := body.get(name), dict) else 0
        if number > most:
            raise _too_many(name, most, number, "members", "object_above_max_properties")
    for name, most in TEXTS.items():
        _check_text(body.get(name), name, most)
    _check_messages(body.get("messages"))
    _check_functions(body.get("tools"))
    _check_prompt(body.get("prompt"))
    _check_documents(body.get("documents"))
    _check_repetitions(body.get("repetition_detection"))


def num_sequences(body: Any) -> int:
    """That a completion asks for: `n` of each prompt."""
    if not isinstance(body, dict):
        return 1
    n, prompt = body.get("n"), body.get("prompt")
    num_prompts = len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1
    return num_prompts * (n if type(n) is int and n > 0 else 1)


def check_sequences(body: Any, most: int) -> int:
    """How many they are. Raises InvalidRequest."""
    number = num_sequences(body)
    if number > most:
        message = f"the request asks for {number} sequences, n of each prompt, and may ask for {most}"
        if isinstance(body.get("prompt"), list):
            raise InvalidRequest(message, "prompt", "array_above_max_length")
        raise InvalidRequest(message, "n", "integer_above_max_value")
    return number


def _check_list(value: list[Any], name: str, bound: Bound) -> None:
    if len(value) > bound.most:
        raise _too_many(name, bound.most, len(value), "entries")
    if bound.of is not None and not set(map(type, value)) <= {bound.of}:
        raise InvalidRequest(f"{name} must be a list of values of type {_NAMES[bound.of]}", name, "invalid_type")
    if bound.longest is not None:
        for text in value:
            _check_text(text, name, bound.longest)


_NAMES = {int: "integer", str: "string", dict: "object"}


def _check_text(value: Any, name: str, most: int) -> None:
    if isinstance(value, str) and len(value) > most:
        raise InvalidRequest(
            f"a text in {name} has {len(value)} characters, and may have {most}", name, "string_above_max_length"
        )


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list):
        return
    num_parts = num_calls = 0
    for message in messages:
        if isinstance(message, dict):
            if len(message) > MAX_MEMBERS_OF_A_MESSAGE:
                raise _too_many("messages", MAX_MEMBERS_OF_A_MESSAGE, len(message), "members of a message")
            num_parts += _number_in(message.get("content"))
            num_calls += _number_in(message.get("tool_calls"))
            if (num_tools := _number_in(message.get("tools"))) > LISTS["tools"].most:
                raise _too_many("messages", LISTS["tools"].most, num_tools, "tools in a message")
    for number, what in ((num_parts, "content parts"), (num_calls, "tool calls")):
        if number > MAX_PARTS:
            raise _too_many("messages", MAX_PARTS, number, what)
    if num_calls:
        _check_arguments(messages)


def _check_arguments(messages: list[Any]) -> None:
    """Of tool calls: JSON in a string, which the chat template wants decoded."""
    total = Counts(0, 0, 0)
    for arguments in _arguments_in(messages):
        text = arguments.encode(errors="replace")
        counts = check_structure(text)
        total = Counts(*map(sum, zip(total, counts, strict=True)))
        is_deep = counts.containers > MAX_DEPTH and nesting_of(text) > MAX_DEPTH
        if is_deep or total.are_too_many:
            why = "are nested too deeply" if is_deep else "have too many values together"
            raise InvalidRequest(f"the arguments of tool calls {why}", "messages", "invalid_value")


def _arguments_in(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str):
                yield arguments


def _number_in(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _check_functions(tools: Any) -> None:
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict):
            function = tool.get("function")
            name = function.get("name") if isinstance(function, dict) else tool.get("name")
            _check_text(name, f"tools[{number}]", MAX_NAME)


def _check_prompt(prompt: Any) -> None:
    """Of a text completion. vLLM would report each entry that is wrong, once for each thing that a prompt may be."""
    if not isinstance(prompt, list):
        return
    kinds = set(map(type, prompt))
    lists = prompt if kinds == {list} else [prompt] if kinds == {int} else []
    if len(kinds) > 1 or not (lists or kinds <= {str}) or any(set(map(type, ids)) - {int} for ids in lists):
        raise InvalidRequest(
            "prompt must be a string, a list of strings, a list of token ids or a list of such lists",
            "prompt",
            "invalid_type",
        )
    if any(ids and min(ids) < 0 for ids in lists):
        raise InvalidRequest("a token id must not be negative", "prompt", "invalid_value")


def _check_documents(documents: Any) -> None:
    for document in documents if isinstance(documents, list) else ():
        if len(document) > MAX_MEMBERS_OF_A_DOCUMENT:
            raise _too_many("documents", MAX_MEMBERS_OF_A_DOCUMENT, len(document), "members of a document")


def _check_repetitions(wanted: Any) -> None:
    if not isinstance(wanted, dict):
        return
    size, count = wanted.get("max_pattern_size"), wanted.get("min_count")
    if type(size) is int and type(count) is int and (size > MAX_PATTERN or size * count > MAX_COMPARED):
        raise InvalidRequest(
            f"max_pattern_size may be {MAX_PATTERN}, and {MAX_COMPARED} with min_count as a factor",
            "repetition_detection",
            "invalid_value",
        )


def _too_many(name: str, most: int, number: int, what: str, code: str = "array_above_max_length") -> InvalidRequest:
    return InvalidRequest(f"{name} has {number} {what}, and may have {most}", name, code)
