"""GET /openapi.json, /docs and /version: every public route is described, in valid OpenAPI, to anybody."""

import asyncio
import json
import re
from typing import Any

import httpx
import jsonschema_rs
import pytest
from fastapi import FastAPI
from fastapi.openapi.models import OpenAPI
from starlette.routing import Route, WebSocketRoute
from vllm.version import __version__ as vllm_version

from api.identity.access import Access
from api.identity.principal import Principal
from api.identity.rights import ALL_RIGHTS
from api.identity.route_rights import needed_by
from cluster.repository import REPO_ROOT, own_version
from tests.component.app_with_fakes import CHAT, FakeFrontend, a_client, an_app
from tests.component.fake_engines import FakeEngines
from tests.expected import of_kind
from tests.hostile.state.blocking import longest_block

OPEN_ROUTES = {"GET /healthz", "GET /readyz", "GET /docs", "GET /openapi.json"}
"""Those that ask for no credential."""
URI = "urn:baton"


def public() -> dict[str, Route]:
    """The routes by method and path, as the document has them."""
    all_routes = an_app(FakeFrontend()).routes
    routes = [of_kind(Route, route) for route in all_routes if not isinstance(route, WebSocketRoute)]
    return {
        f"{method} {route.path_format}": route for route in routes for method in (route.methods or set()) - {"HEAD"}
    }


def a_closed_app(**config: Any) -> FastAPI:
    """An application that asks for credentials, and knows one."""
    somebody = Principal(tenant="t", project="p", key="k", rights=ALL_RIGHTS)

    async def identify(credential: str) -> Principal:
        return somebody

    return an_app(FakeFrontend(), access=Access(identify, is_required=True), **config)


async def got(app: FastAPI, path: str, **headers: str) -> httpx.Response:
    async with a_client(app) as client:
        return await client.get(path, headers=headers)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    told: dict[str, Any] = asyncio.run(got(an_app(FakeFrontend()), "/openapi.json")).json()
    return told


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def nodes(node: Any) -> list[dict[str, Any]]:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [*([node] if isinstance(node, dict) else []), *(one for part in inner for one in nodes(part))]


def test_every_public_route_is_described(document: dict[str, Any]) -> None:
    described = operations(document)
    assert described.keys() == public().keys() and len(described) > 40
    assert [name for name, operation in described.items() if not operation["summary"]] == []
    assert len({operation["operationId"] for operation in described.values()}) == len(described)


def test_rights_are_those_that_the_routes_ask_for(document: dict[str, Any]) -> None:
    told = {name: operation["security"] for name, operation in operations(document).items()}
    needed = {name: list(needed_by(route.endpoint)) for name, route in public().items()}
    assert told == {name: [{"credential": rights}] if rights else [] for name, rights in needed.items()}
    assert {name for name, rights in needed.items() if not rights} == OPEN_ROUTES


def test_document_is_valid_openapi(document: dict[str, Any]) -> None:
    OpenAPI.model_validate(document)
    components = document["components"]
    for node in nodes(document):
        if isinstance(target := node.get("$ref"), str):
            _, kind, name = target.removeprefix("#/").split("/")
            assert name in components[kind], target
    for schema in [
        *components["schemas"].values(),
        *(node["schema"] for node in nodes(document["paths"]) if isinstance(node.get("schema"), dict)),
    ]:
        jsonschema_rs.meta.validate(schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"})
    for name, operation in operations(document).items():
        in_path = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", name))


@pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning")  # vLLM reads its own field
async def test_bodies_and_answers_follow_the_document(document: dict[str, Any]) -> None:
    registry = jsonschema_rs.Registry([(URI, document)])

    def deviations(content: dict[str, Any], value: Any) -> list[str]:
        schema = json.loads(json.dumps(content["application/json"]["schema"]).replace('"#/', f'"{URI}#/'))
        return [str(error) for error in jsonschema_rs.validator_for(schema, registry=registry).iter_errors(value)]

    asked: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "Hello"}]},
        "/v1/completions": {"prompt": "Hello"},
        "/tokenize": {"prompt": "Hello", "return_token_strs": True},
        "/detokenize": {"tokens": [5]},
    }
    async with a_client(an_app(await FakeEngines().frontend(512))) as client:
        for path, body in asked.items():
            told = document["paths"][path]["post"]
            body = {"model": "baton-demo", **body}
            assert deviations(told["requestBody"]["content"], body) == []
            assert deviations(told["requestBody"]["content"], body | {"unheard": 1}) != []
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert deviations(told["responses"]["200"]["content"], answer.json()) == []
        refused = await client.post(CHAT, json={})
        assert deviations(document["components"]["responses"]["Error"]["content"], refused.json()) == []


async def test_page_loads_and_runs_nothing_and_has_each_route() -> None:
    answer = await got(a_closed_app(), "/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    page = answer.text
    assert not re.search(r"<script|<link|<img|src=|@import|url\(|\son\w+=", page)
    assert re.findall(r"href='([^']*)'", page) == ["/openapi.json"]
    for name in public():
        assert f"<code>{name}</code>" in page
    assert "<code>max_completion_tokens</code>" in page and "<code>previous_response_id</code>" in page


async def test_surface_is_no_secret_and_the_rest_asks_for_a_credential() -> None:
    app = a_closed_app()
    for path in ("/openapi.json", "/docs"):
        assert (await got(app, path)).status_code == 200
    async with a_client(app) as client:
        for method, path in (("GET", "/version"), ("POST", "/tokenize"), ("POST", "/detokenize")):
            refused = await client.request(method, path, content=b"{}" if method == "POST" else None)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_version_is_that_of_both() -> None:
    answer = await got(a_closed_app(), "/version", authorization="Bearer k")
    assert answer.json() == {"version": own_version(), "vllm": vllm_version}


async def test_operator_can_turn_the_description_off() -> None:
    app = an_app(FakeFrontend(), docs=False)
    for path in ("/openapi.json", "/docs"):
        refused = await got(app, path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown_url")


async def test_client_that_leaves_does_not_end_it_for_others() -> None:
    app = an_app(FakeFrontend())
    async with longest_block() as longest:
        leaving = asyncio.create_task(got(app, "/docs"))
        await asyncio.sleep(0)
        staying = asyncio.create_task(got(app, "/openapi.json"))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).status_code == 200
        await asyncio.wait([leaving])
    assert longest.blocked_s < 0.25
    assert (await got(app, "/docs")).status_code == 200


def test_page_of_the_documents_lists_the_routes() -> None:
    rows = re.findall(r"^\| `(\w+ [^`]+)` \| ([^|]*) \|", (REPO_ROOT / "docs/api.md").read_text(), re.MULTILINE)
    told = {name: sorted(re.findall(r"`([^`]+)`", rights)) for name, rights in rows}
    assert told == {name: sorted(needed_by(route.endpoint)) for name, route in public().items()}
