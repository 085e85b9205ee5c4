"""Bounds on the constraints of structured output: JSON schemas, regular expressions and choices.

They are checked before any other code reads a constraint. With these bounds, the work of each later step is
proportional to the bytes that the client has sent. A constraint within the bounds may still be slow: api/structured/
compiles it to find out.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from cluster.config.structured_output import StructuredOutputConfig
from cluster.errors import InvalidRequest

MAX_DEPTH = 64
"""Levels of objects and arrays in a schema, as vLLM and xgrammar limit them. OpenAI admits 10 levels of objects of the
described value, which are 20 to 30 levels of the schema. A higher bound admits schemas that the engine refuses later; a
lower bound refuses schemas that OpenAI accepts.
"""
MAX_PROPERTIES = 5_000
"""Properties of all objects of a schema together, with the items of tuples, as OpenAI limits them. A higher bound
admits schemas within `max_schema_bytes` that take a second to compile; a lower bound refuses schemas that OpenAI
accepts.
"""
MAX_ENUM_VALUES = 1_000
"""Values of all enumerations of a schema together, and entries of `choice`, as OpenAI limits them. A higher bound takes
longer to compile; a lower bound refuses schemas that OpenAI accepts.
"""
MAX_ALTERNATIVES = 2_000
"""Branches of `anyOf`, `oneOf` and `allOf` in a schema. A nullable property has two. An engine follows all branches
that fit at once: a higher bound makes engine steps slower; a lower bound refuses schemas with many nullable properties.
"""
MAX_REFERENCES = 1_000
"""`$ref`s in a schema. A higher bound admits recursive schemas with more rules that an engine follows at once; a lower
bound refuses schemas that refer to their parts often.
"""
MAX_REGEX_BYTES = 4 << 10
"""Bytes of one regular expression. People write shorter ones. The time to compile one grows at least in proportion, so
that a higher bound takes longer; a lower bound refuses long expressions.
"""
MAX_PATTERN_BYTES = 16 << 10
"""Bytes of all regular expressions of a schema together. Higher takes longer to compile; lower refuses more schemas."""
MAX_REPETITION = 10_000
"""Largest number in `{m,n}` of a regular expression, and largest value of `minItems`, `maxItems` and their like. Such a
repetition is compiled into as many copies: a higher bound takes longer and more memory; a lower bound refuses long
lists.
"""
MAX_LENGTH = 1_000_000
"""Largest value of `minLength` and `maxLength`. They become counters, so that a high bound costs little; a lower
bound refuses limits on long texts.
"""

MAX_MULTIPLE = 10_000
"""Largest value of `multipleOf`, without its power of ten. Compiling takes 7 us and 400 bytes for each number below it:
a higher bound takes longer and more memory; a lower bound refuses more schemas.
"""

_NAMED = ("properties", "patternProperties")
_BRANCHES = ("anyOf", "oneOf", "allOf")
_COPIES = ("minItems", "maxItems", "minContains", "maxContains", "minProperties", "maxProperties")
_LENGTHS = ("minLength", "maxLength")
_COUNTERS = frozenset(
    (*_NAMED, *_BRANCHES, *_COPIES, *_LENGTHS, "prefixItems", "enum", "$ref", "pattern", "multipleOf")
)
_COUNTED = re.compile(r"\{\s*+(\d++)\s*+(?:,\s*+(\d*+)\s*+)?\}")
"""A repetition in a regular expression. The quantifiers are possessive, which avoids backtracking: with a plain `*`,
the time to search spaces is quadratic in their number.
"""

_FREE = ("grammar", "structural_tag")
_NOT_WITH_TOOLS = ("regex", *_FREE)
"""Constraints that are refused beside tools. vLLM puts the constraint and the tools into one grammar for xgrammar,
where regular expressions have no bounds.
"""


def check_constraints(body: Any, config: StructuredOutputConfig) -> None:
    """Checks the constraints in the body of a chat completion, a completion or a response. A field of a wrong type is
    skipped, because the request model refuses it.

    Raises:
        InvalidRequest: a constraint is of a kind that clients may not use, or is too large.
    """
    if not isinstance(body, dict):
        return
    if isinstance(outputs := body.get("structured_outputs"), dict):
        _check_structured_outputs(outputs, config)
        if body.get("tools") and body.get("tool_choice") != "none":
            _check_beside_tools(outputs)
    for param, given in _formats(body):
        _check_format(given, param, config)
    _check_tools(body.get("tools"), config)


def _formats(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The formats of a body: `response_format` of completions and chat completions, `text.format` of responses."""
    if isinstance(given := body.get("response_format"), dict):
        yield "response_format", given
    if isinstance(text := body.get("text"), dict) and isinstance(given := text.get("format"), dict):
        yield "text.format", given


def _check_structured_outputs(outputs: dict[str, Any], config: StructuredOutputConfig) -> None:
    for name in _FREE:
        if outputs.get(name) is not None:
            _check_free(outputs[name], f"structured_outputs.{name}", config)
    schema = outputs.get("json")
    if isinstance(schema, str):
        schema = _parsed(schema, "structured_outputs.json", config)
    if isinstance(schema, dict | list):
        _Schema("structured_outputs.json", config).check(schema)
    if isinstance(regex := outputs.get("regex"), str):
        _check_regex(regex, "structured_outputs.regex")
    if isinstance(choices := outputs.get("choice"), list):
        param = "structured_outputs.choice"
        if not choices:
            raise InvalidRequest(f"{param} is empty", param, "empty_array")
        _check_most(len(choices), MAX_ENUM_VALUES, "choices", param)
        _check_most(sum(_size(c) for c in choices if isinstance(c, str)), config.max_schema_bytes, "bytes", param)


def _check_beside_tools(outputs: dict[str, Any]) -> None:
    for name in _NOT_WITH_TOOLS:
        if outputs.get(name) is not None:
            param = f"structured_outputs.{name}"
            raise InvalidRequest(f"{param} cannot be combined with tools", param, "unsupported_value")


def _check_format(given: dict[str, Any], param: str, config: StructuredOutputConfig) -> None:
    if given.get("type") in _FREE:
        _check_free(given, f"{param}.type", config)
    for name in ("json_schema", "schema"):  # the field of chat completions, and the field of responses
        held = given.get(name)
        schema = held.get("schema") if name == "json_schema" and isinstance(held, dict) else held
        if isinstance(schema, dict | list):
            path = f"{param}.json_schema.schema" if name == "json_schema" else f"{param}.schema"
            _Schema(path, config).check(schema)


def _check_tools(tools: Any, config: StructuredOutputConfig) -> None:
    counted = _Schema("tools", config)
    for where, function in _functions(tools, "tools"):
        if isinstance(function.get("parameters"), dict):
            counted.param = f"{where}.parameters"
            counted.check(function["parameters"])


def _functions(tools: Any, param: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The functions among tools with their paths, also those in the namespaces of a Responses request. A chat
    completion has them in `function` and a response does not: both are looked at, so that no field hides the other.
    """
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        path = f"{param}.{number}"
        if not isinstance(tool, dict):
            continue
        if tool.get("type") == "namespace" and param == "tools":
            yield from _functions(tool.get("tools"), f"{path}.tools")
            continue
        yield path, tool
        if isinstance(function := tool.get("function"), dict):
            yield f"{path}.function", function


def _check_free(given: Any, param: str, config: StructuredOutputConfig) -> None:
    if not config.allow_grammars:
        raise InvalidRequest(
            f"{param}: this service does not allow grammars and structural tags of clients",
            param,
            "unsupported_parameter",
        )
    if isinstance(given, str):
        _check_most(_size(given), config.max_schema_bytes, "bytes", param)
    else:
        _Schema(param, config).check(given)


def _check_regex(regex: str, param: str) -> None:
    _check_most(_size(regex), MAX_REGEX_BYTES, "bytes", param)
    for counted in _COUNTED.finditer(regex):
        for digits in filter(None, counted.groups()):
            if len(digits) > len(str(MAX_REPETITION)) or int(digits) > MAX_REPETITION:
                raise _too_large(f"has a repetition of more than {MAX_REPETITION} times", param)


def _parsed(schema: str, param: str, config: StructuredOutputConfig) -> Any:
    _check_most(_size(schema), config.max_schema_bytes, "bytes", param)
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{param} is not a JSON schema", param, "invalid_value") from error


class _Schema:
    """The counts of a schema, or of several schemas that are compiled together, and their bounds."""

    def __init__(self, param: str, config: StructuredOutputConfig) -> None:
        self.param = param
        self._counts = dict.fromkeys(
            ("bytes", "properties", "enumerated values", "alternatives", "references", "bytes of regular expressions"),
            0,
        )
        self._most = {
            "bytes": config.max_schema_bytes,
            "properties": MAX_PROPERTIES,
            "enumerated values": MAX_ENUM_VALUES,
            "alternatives": MAX_ALTERNATIVES,
            "references": MAX_REFERENCES,
            "bytes of regular expressions": MAX_PATTERN_BYTES,
        }

    def check(self, schema: Any) -> None:
        """Adds a schema to the counts. Raises InvalidRequest as soon as a count exceeds its bound."""
        level = [schema]
        for _ in range(MAX_DEPTH):
            level = [inner for value in level for inner in self._walk(value)]
            if not level:
                return
        raise _too_large(f"is nested more than {MAX_DEPTH} levels deep", self.param)

    def _walk(self, value: dict[str, Any] | list[Any]) -> list[Any]:
        """Counts the content of one object or array, and returns the objects and arrays in it."""
        self._count("bytes", len(value))
        inners: Any = value
        if isinstance(value, dict):
            for key, inner in value.items():
                if key in _COUNTERS:
                    self._count_keyword(key, inner)
            self._count("bytes", sum(map(_size, value)))
            inners = value.values()
        self._count("bytes", sum(_size(inner) for inner in inners if isinstance(inner, str)))
        return [inner for inner in inners if isinstance(inner, dict | list)]

    def _count_keyword(self, key: str, value: Any) -> None:
        """Counts the value of a keyword. A property may have the name of a keyword. Its value is then a schema, whose
        type is none that the keyword may have.
        """
        if key in _NAMED and isinstance(value, dict):
            self._count("properties", len(value))
            for pattern in value if key == "patternProperties" else ():
                self._count_regex(str(pattern))
        elif key in _BRANCHES and isinstance(value, list):
            self._count("alternatives", len(value))
        elif key == "prefixItems" and isinstance(value, list):
            self._count("properties", len(value))
        elif key == "enum" and isinstance(value, list):
            self._count("enumerated values", len(value))
        elif key == "$ref" and isinstance(value, str):
            self._count("references", 1)
        elif key == "pattern" and isinstance(value, str):
            self._count_regex(value)
        elif key == "multipleOf" and type(value) in (int, float):
            if _without_power_of_ten(value) > MAX_MULTIPLE:
                raise _too_large(
                    f"has a multipleOf with too many digits: {MAX_MULTIPLE} is the limit without the power of ten",
                    self.param,
                )
        elif key in _COPIES or key in _LENGTHS:
            most = MAX_LENGTH if key in _LENGTHS else MAX_REPETITION
            if isinstance(value, int | float) and value > most:
                raise _too_large(f"has a {key} above {most}", self.param)

    def _count_regex(self, regex: str) -> None:
        self._count("bytes of regular expressions", _size(regex))
        _check_regex(regex, self.param)

    def _count(self, what: str, number: int) -> None:
        self._counts[what] += number
        _check_most(self._counts[what], self._most[what], what, self.param)


def _without_power_of_ten(value: int | float) -> int:
    digits = re.sub(r"[^0-9]", "", str(value).partition("e")[0]).strip("0")
    return int(digits[:20] or "0")


def _check_most(number: int, most: int, what: str, param: str) -> None:
    if number > most:
        raise _too_large(f"has more than {most} {what}", param)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _too_large(why: str, param: str) -> InvalidRequest:
    return InvalidRequest(f"{param} {why}", param, "invalid_value")
