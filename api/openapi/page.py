"""The document as a page of HTML without scripts: each route with its parameters and fields. Pure."""

import hashlib
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from typing import Any

from api.openapi.schemas import REF

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}
code{font-family:ui-monospace,monospace}summary{cursor:pointer;padding:.3rem 0}summary code{font-weight:600}
table{border-collapse:collapse;margin:.5rem 0 1rem}th,td{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0}
""".strip()
MANY_KINDS = 4
"""Kinds of a value that the page names. More make wide columns; fewer send readers to the document more often."""
_HASH = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
"""What browsers let the page do: it has its own style, and nothing else is loaded or run."""


def page_of(document: dict[str, Any]) -> str:
    info = document["info"]
    return "".join(
        (
            "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
            "<meta name='viewport' content='width=device-width,initial-scale=1'>",
            f"<title>{escape(info['title'])}: API</title><style>{STYLE}</style></head><body><main>",
            f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])} ",
            "The same as an <a href='/openapi.json'>OpenAPI document</a>.</p>",
            *_sections(document),
            "</main></body></html>\n",
        )
    )


def _sections(document: dict[str, Any]) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>"
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if tag["name"] in operation["tags"]:
                    yield from _operation(f"{method.upper()} {path}", operation, schemas)


def _operation(name: str, operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    yield f"<details><summary><code>{escape(name)}</code> {escape(operation['summary'])}</summary>"
    for paragraph in operation.get("description", "").split("\n\n"):
        yield f"<p>{escape(paragraph)}</p>" if paragraph else ""
    if not operation["security"]:
        yield "<p>Needs no credential.</p>"
    parameters = [
        (one["name"], f"{one['in']}, {_type(one['schema'])}", one.get("required", False), "")
        for one in operation.get("parameters", ())
    ]
    yield from _table("Parameters", parameters)
    content = operation.get("requestBody", {}).get("content", {})
    for schema in (one["schema"] for one in content.values()):
        for title, branch in _branches(schema, schemas):
            yield from _table(title, list(_fields(branch)))
    yield "</details>"


def _branches(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in schema.get("oneOf", [schema]):
        name = one.get("$ref", "").removeprefix(REF)
        yield (f"Body ({name})", schemas[name]) if name else ("Body", one)


def _fields(schema: dict[str, Any]) -> Iterator[tuple[str, str, bool, str]]:
    for name, field in schema.get("properties", {}).items():
        yield name, _type(field), name in schema.get("required", ()), field.get("description", "")


def _type(schema: dict[str, Any]) -> str:
    """In words."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(REF)
    if "const" in schema or "enum" in schema:
        return " or ".join(str(one) for one in schema.get("enum", [schema.get("const")]))
    branches = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if branches:
        kinds = list(dict.fromkeys(_type(one) for one in branches))
        return " or ".join(kinds) if len(kinds) <= MANY_KINDS else f"one of {len(kinds)} kinds"
    kind = schema.get("type", "any")
    if kind == "array" and "items" in schema:
        return f"array of {_type(schema['items'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _table(title: str, rows: list[tuple[str, str, bool, str]]) -> Iterator[str]:
    if not rows:
        return
    yield f"<table><tr><th>{escape(title)}</th><th>Type</th><th></th></tr>"
    for name, kind, is_required, text in rows:
        told = "Required. " * is_required + text
        yield f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{escape(told)}</td></tr>"
    yield "</table>"
