"""Constraints that hurt where nothing stops them, and honest ones."""

from typing import Any

Schema = dict[str, Any]

HONEST: dict[str, Schema] = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 200},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "born": {"type": "string", "format": "date"},
            "nick": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        },
        "required": ["name", "age", "born", "nick", "code"],
        "additionalProperties": False,
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value", "children"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "one of kinds": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "of": {"type": kind}},
                "required": ["kind", "of"],
            }
            for kind in ("string", "integer")
        ]
    },
    "format that nobody knows": {"type": "string", "format": "file-path"},
}

RECURSIVE_SUM = 'root ::= "a" | root root | root root root'
TWELVE_FOLD = 'root ::= "a"' + "".join(" | " + " ".join(["root"] * n) for n in range(2, 13))
ENDLESS_RULES = (
    "root ::= ("
    + " | ".join(f"r{i} root" for i in range(40))
    + ' | "a")\n'
    + "\n".join(f"r{i} ::= [a-z]+ r{(i * 7 + 1) % 40} | [a-z]+" for i in range(40))
)

SLOW_TO_COMPILE: Schema = {"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}
"""Small enough for all bounds: the two multiples make one of 99,400,891."""


def mutual(num_rules: int, num_branches: int = 10) -> Schema:
    """Rules that each may be any of many others, in lists."""
    rules = {
        f"r{i}": {
            "anyOf": [
                {"type": "array", "items": {"$ref": f"#/$defs/r{(i * 7 + j) % num_rules}"}} for j in range(num_branches)
            ]
            + [{"type": "string"}]
        }
        for i in range(num_rules)
    }
    return {"$defs": rules, "$ref": "#/$defs/r0"}


def nested(depth: int) -> Schema:
    schema: Schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


TOO_LARGE: dict[str, Schema] = {
    "many properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5001)}},
    "many values": {"enum": [f"v{i}" for i in range(1001)]},
    "many bytes": {"enum": ["x" * 300_000]},
    "many branches": {"anyOf": [{"type": "string"}] * 2001},
    "many references": {"$defs": {"a": {"type": "string"}}, "prefixItems": [{"$ref": "#/$defs/a"}] * 1001},
    "deep": nested(64),
    "many copies": {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000},
    "long string": {"type": "string", "minLength": 10_000_000},
    "large multiple": {"type": "integer", "multipleOf": 999_983},
    "small multiple": {"type": "number", "multipleOf": 0.0000999983},
    "long pattern": {"type": "string", "pattern": "a" * 5000},
    "many repetitions": {"type": "string", "pattern": "a{1,100000}"},
    "many rules": mutual(300),
}
