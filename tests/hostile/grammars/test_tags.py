"""What of a tool's schema is too costly for xgrammar is not in the tag that it compiles, and everything else is."""

import json
from typing import Any

import pytest

from cluster.engine_core.tag_schemas import bounded_tag


def bounded(schema: dict[str, Any]) -> Any:
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    return json.loads(bounded_tag(json.dumps(tag)))["format"]["json_schema"]


@pytest.mark.parametrize(
    "keyword",
    [
        {"pattern": "((a+)+)+b"},
        {"patternProperties": {"(a+)+b": {"type": "string"}}},
        {"maxLength": 100},
        {"minLength": 2},
        {"minItems": 1001},
    ],
    ids=str,
)
def test_costly_keyword_is_dropped_wherever_it_stands(keyword: dict[str, Any]) -> None:
    schema = {"type": "string"}
    assert bounded(schema | keyword) == schema
    nested = {"anyOf": [{"type": "object", "properties": {"a": schema}}], "$defs": {"b": schema}}
    costly = {"anyOf": [{"type": "object", "properties": {"a": schema | keyword}}], "$defs": {"b": schema | keyword}}
    assert bounded(costly) == nested


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 1000},
        {"type": "object", "properties": {name: {"type": "string"} for name in ("pattern", "maxLength")}},
        {"enum": [{"pattern": "a", "maxLength": 9}]},
    ],
    ids=str,
)
def test_everything_else_is_kept(schema: dict[str, Any]) -> None:
    assert bounded(schema) == schema
