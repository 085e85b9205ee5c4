"""Bounds on the lists, objects and texts of a request body. They are checked before the fields are validated.

vLLM's request models hold the interpreter lock while they validate, and vLLM renders prompts on the event loop: a field
without a bound could stop every stream of the replica. The bounds are OpenAI's where OpenAI publishes one. All other
bounds are several times what clients send, and so small that no single step takes 50 ms on one core.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from api.wire.limits.depth import MAX_DEPTH
from api.wire.limits.structure import Counts, check_structure, nesting_of
from cluster.errors import InvalidRequest


class Bound(NamedTuple):
    most: int
    """Entries that the list may have."""
    of: type | None = None
    """The type of every entry, checked here where vLLM's validation would make an error for each wrong entry. None if
    only the number of entries is checked.
    """
    longest: int | None = None
    """Characters that a text in the list may have. None for lists that are not of texts."""


LISTS = {
    # OpenAI's limit. Validating 2,048 messages takes 6 ms, and 24 ms if each of them calls a tool
    "messages": Bound(2048),
    # OpenAI's limit. Each tool is rendered into the prompt, and may become a grammar
    "tools": Bound(128),
    # OpenAI's limit, and vLLM's (VLLM_MAX_STOP_STRINGS): the generated text is compared with each at every token
    "stop": Bound(4, str, 1024),
    # vLLM's limit on their token sequences. Each text is tokenized twice on the event loop
    "bad_words": Bound(128, str, 1024),
    # The engine looks up each generated token among them
    "stop_token_ids": Bound(1024, int),
    # The bound exceeds the size of every known vocabulary
    "allowed_token_ids": Bound(1 << 18, int),
    # vLLM has a lower bound of its own. Each id adds an entry to the answer for every token
    "logprob_token_ids": Bound(1024, int),
    # Retrieved texts, which are rendered into the prompt
    "documents": Bound(256, dict),
    # OpenAI has eight values
    "include": Bound(16, str, 64),
    # OpenAI has one type of entry
    "context_management": Bound(16),
    "modalities": Bound(8, str, 64),
}
"""Lists of a body and the entries that they may have. Lower bounds refuse requests that clients send; higher ones take
longer on the event loop or in the engine, as each line says.
"""

MAX_ARGUMENT_VALUES = 1 << 17
"""Values in the arguments of all tool calls together. Decoding them for the chat template takes 30 ms of the event
loop. Higher takes longer; lower refuses long conversations with large calls.
"""

OBJECTS = {
    # An engine applies it at each step. OpenAI's API accepts 300 members
    "logit_bias": 1024,
    "stream_options": 16,
    "reasoning": 16,
}
"""Objects of a body and the members that they may have. Lower bounds refuse requests that clients send; higher bounds
take longer to validate, and `logit_bias` also delays each step of the engine.
"""

TEXTS = {"model": 512, "user": 512, "safety_identifier": 512, "prompt_cache_key": 512, "service_tier": 64, "stop": 1024}
"""Fields and the characters that they may have. OpenAI's limit on `user`, `safety_identifier` and `prompt_cache_key` is
64. Lower bounds refuse longer names; higher bounds send back and store more text.
"""

MAX_PARTS = 2048
"""Content parts of all messages together, and tool calls of all messages together. Validating 2,048 parts takes 11 ms,
and 2,048 tool calls 24 ms. Rendering takes the same time again. Higher takes longer in proportion; lower refuses long
conversations.
"""
MAX_NAME = 64
"""Characters of the name of a function, as OpenAI limits them. Lower refuses names that OpenAI accepts; higher renders
longer names into prompts.
"""
MAX_MEMBERS_OF_A_DOCUMENT = 32
"""Members of one document, which are rendered into the prompt. Lower refuses richer documents; higher takes longer."""
MAX_MEMBERS_OF_A_MESSAGE = 64
"""Members of one message. vLLM knows nine. Lower refuses messages with many unknown members; higher takes longer,
several times over, since pydantic validates each message as every kind of message.
"""
MAX_PATTERN, MAX_COMPARED = 64, 512
"""Bounds of `repetition_detection`: tokens of a pattern, and tokens of its repetitions together. After each token vLLM
compares patterns of all lengths in the loop of the engine core. At these bounds that takes up to 1 ms; higher bounds
delay all requests of the engine.
"""


def check_bounds(body: Any) -> None:
    """Checks all bounds of a body. Fields of a wrong type are left to their request model. Raises InvalidRequest."""
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
    """Sequences that a body of a completion asks for: `n` for each of its prompts."""
    if not isinstance(body, dict):
        return 1
    n, prompt = body.get("n"), body.get("prompt")
    num_prompts = len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1
    return num_prompts * (n if type(n) is int and n > 0 else 1)


def check_sequences(body: Any, most: int) -> int:
    """The number of sequences that a body asks for. Raises InvalidRequest if it exceeds `most`, and for an `n` that is
    no integer: vLLM would read "16384" as one, after the sequences were counted.
    """
    if isinstance(body, dict) and body.get("n") is not None and type(body["n"]) is not int:
        raise InvalidRequest("n must be an integer", "n", "invalid_type")
    number = num_sequences(body)
    if number > most:
        message = f"the request asks for {number} sequences (n for each prompt), and the limit is {most}"
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
    """Checks the arguments of tool calls, which are JSON in a string. They are decoded for the chat template."""
    total = Counts(0, 0, 0)
    for arguments in _arguments_in(messages):
        text = arguments.encode(errors="replace")
        counts = check_structure(text)
        total = Counts(*map(sum, zip(total, counts, strict=True)))
        is_deep = counts.containers > MAX_DEPTH and nesting_of(text) > MAX_DEPTH
        if is_deep or total.are_too_many or total.values > MAX_ARGUMENT_VALUES:
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
    """Functions in the namespaces of a response count as if they were among its tools."""
    most = LISTS["tools"].most
    for number, (path, tool) in enumerate(_named_tools(tools, "tools"), 1):
        if number > most:
            raise InvalidRequest(f"tools has more than {most} tools", "tools", "array_above_max_length")
        if isinstance(tool, dict):
            _check_text(tool.get("name"), path, MAX_NAME)
            if isinstance(function := tool.get("function"), dict):
                _check_text(function.get("name"), path, MAX_NAME)


def _named_tools(tools: Any, param: str) -> Iterator[tuple[str, Any]]:
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        path = f"{param}[{number}]"
        yield path, tool
        if isinstance(tool, dict) and tool.get("type") == "namespace" and param == "tools":
            yield from _named_tools(tool.get("tools"), f"{path}.tools")


def _check_prompt(prompt: Any) -> None:
    """Checks the prompt of a text completion. vLLM's validation would report each wrong entry several times, once for
    each type that a prompt may have.
    """
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
    for name, value in (("max_pattern_size", size), ("min_count", count)):
        if value is not None and type(value) is not int:
            raise InvalidRequest(f"{name} must be an integer", "repetition_detection", "invalid_type")
    if size is not None and count is not None and (size > MAX_PATTERN or size * count > MAX_COMPARED):
        raise InvalidRequest(
            f"max_pattern_size may be at most {MAX_PATTERN}, and times min_count at most {MAX_COMPARED}",
            "repetition_detection",
            "invalid_value",
        )


def _too_many(name: str, most: int, number: int, what: str, code: str = "array_above_max_length") -> InvalidRequest:
    return InvalidRequest(f"{name} has {number} {what}, and may have {most}", name, code)
