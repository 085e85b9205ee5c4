"""Parts of JSON schemas, and which of the schemas a document needs."""

from api.openapi.headers import HEADERS
from api.openapi.schemas import Schema, list_of, of_fields, reached, ref
from api.wire.response_headers import EXPOSED


def test_every_header_that_clients_may_read_is_described() -> None:
    assert HEADERS.keys() == set(EXPOSED)


def test_fields_have_the_types_that_are_known() -> None:
    types = {"a": str, "b": (int, float), "c": (str, dict), "e": {"enum": ["x"]}, "f": list_of({"type": "string"})}
    assert of_fields({"a", "b", "c", "d", "e", "f"}, types, {"a"}) == {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": ["number", "null"]},
            "c": {"type": ["string", "object", "null"]},
            "d": {},
            "e": {"anyOf": [{"enum": ["x"]}, {"type": "null"}]},
            "f": {"type": ["array", "null"], "items": {"type": "string"}},
        },
        "additionalProperties": False,
        "required": ["a"],
    }


def test_schemas_that_nothing_leads_to_are_left_out() -> None:
    schemas: dict[str, Schema] = {
        "a": {"items": ref("b")},
        "b": {"anyOf": [ref("a"), ref("b")]},
        "c": {"items": ref("a")},
    }
    assert reached({"schema": ref("a")}, schemas).keys() == {"a", "b"}
    assert reached({"$ref": "#/components/responses/a"}, schemas) == {}
