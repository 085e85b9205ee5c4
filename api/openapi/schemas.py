"""Parts of JSON schemas. Pure."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

Schema = dict[str, Any]

REF = "#/components/schemas/"
OBJECT: Schema = {"type": "object"}
STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}

_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}


def ref(name: str) -> Schema:
    """A reference to a schema of the document."""
    return {"$ref": REF + name}


def of_fields(known: Collection[str], types: Mapping[str, Any], required: Collection[str] = ()) -> Schema:
    """The schema of an object that has no field beside `known`. `types`: of some of the fields, each one Python's type,
    several, or a schema. Null stands for a field that is absent, so that one which is not required may be null.
    """
    properties = {name: _of_type(types[name]) if name in types else {} for name in sorted(known)}
    for name in properties.keys() - set(required):
        properties[name] = _or_null(properties[name])
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | {"required": sorted(required)} if required else schema


def refs_in(node: Any) -> Iterator[str]:
    """The names of the schemas that a part of the document refers to."""
    if isinstance(node, dict):
        for name, one in node.items():
            if name == "$ref" and isinstance(one, str):
                yield one.removeprefix(REF)
            else:
                yield from refs_in(one)
    elif isinstance(node, list):
        for one in node:
            yield from refs_in(one)


def reached(root: Any, schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """Those of the schemas that `root` refers to, by itself or through others."""
    found: dict[str, Schema] = {}
    left = [root]
    while left:
        for name in refs_in(left.pop()):
            if name in schemas and name not in found:
                found[name] = schemas[name]
                left.append(schemas[name])
    return dict(sorted(found.items()))


def list_of(entries: Schema) -> Schema:
    return {"type": "array", "items": entries}


def _of_type(kinds: Any) -> Schema:
    if isinstance(kinds, dict):
        return kinds
    if not isinstance(kinds, tuple):
        return {"type": _KINDS[kinds]}
    return {"type": "number"} if set(kinds) == {int, float} else {"type": [_KINDS[kind] for kind in kinds]}


def _or_null(schema: Schema) -> Schema:
    if "type" not in schema:
        return {"anyOf": [schema, {"type": "null"}]} if schema else schema
    kinds = schema["type"]
    return schema | {"type": [*(kinds if isinstance(kinds, list) else [kinds]), "null"]}
