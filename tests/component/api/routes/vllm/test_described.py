"""What the document says of bodies and parameters, asked of the routes themselves."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from api.openapi.schemas import REF
from api.routes.vllm.described import DESCRIBED
from api.wire.fields import PRIVILEGED, UNSUPPORTED
from tests.component.app_with_fakes import a_client, an_app
from tests.component.fake_engines import FakeEngines

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # vLLM reads its own old fields
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with a_client(an_app(await FakeEngines().frontend(512))) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    told: dict[str, Any] = (await client.get("/openapi.json")).json()
    return told


async def error_of(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> tuple[str, str] | None:
    """The code and the parameter of the error that a request is answered with."""
    answer = await client.request(method, path.replace("{", "").replace("}", "_1"), json=body)
    if answer.status_code < 400:
        return None
    error = answer.json()["error"]
    if "code" in error:
        return error["code"], error["param"]
    return error.get("details", {}).get("error_code"), error["message"]  # the Messages API has no `param`


async def bodies(document: dict[str, Any], name: str) -> AsyncIterator[dict[str, Any]]:
    schema = DESCRIBED[name].body or {}
    for one in schema.get("oneOf", [schema]):
        yield document["components"]["schemas"][one["$ref"].removeprefix(REF)] if "$ref" in one else one


@pytest.mark.parametrize("name", [name for name, told in DESCRIBED.items() if told.body])
async def test_route_knows_the_fields_of_its_body_and_no_others(
    client: httpx.AsyncClient, document: dict[str, Any], name: str
) -> None:
    method, path = name.split()
    async for schema in bodies(document, name):
        assert schema["additionalProperties"] is False
        assert set(schema.get("required", ())) <= schema["properties"].keys()
        base: dict[str, Any] = {"messages": []} if "messages" in schema["properties"] else {}
        refused = await error_of(client, method, path, base | {"unheard": 1})
        assert refused is not None and refused[0] == "unknown_parameter" and "unheard" in refused[1]
        for field in schema["properties"]:
            error = await error_of(client, method, path, base | {field: []})
            assert error is None or error[0] not in ("unknown_parameter", "unsupported_parameter"), field
        assert schema["properties"].keys() & (PRIVILEGED | UNSUPPORTED) == set()


async def test_every_post_with_a_body_is_described(document: dict[str, Any]) -> None:
    posts = {f"POST {path}": told["post"] for path, told in document["paths"].items() if "post" in told}
    assert {name for name, told in posts.items() if "requestBody" not in told} == {
        "POST /v1/responses/{response}/cancel"
    }
    assert DESCRIBED.keys() <= {
        f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods
    }


async def test_lists_are_described_as_lists(client: httpx.AsyncClient, document: dict[str, Any]) -> None:
    for path, told in document["paths"].items():
        names = {one["name"] for one in told.get("get", {}).get("parameters", ())}
        if "get" in told and "start_time" not in names:
            error = await error_of(client, "GET", path + "?limit=0")
            assert (error == ("invalid_value", "limit")) == ("limit" in names), path


async def test_parameters_of_usage_are_all(client: httpx.AsyncClient, document: dict[str, Any]) -> None:
    for path in ("/v1/organization/usage/completions", "/v1/organization/costs"):
        assert await error_of(client, "GET", path + "?unheard=1") == ("unknown_parameter", "unheard")
        for one in document["paths"][path]["get"]["parameters"]:
            error = await error_of(client, "GET", f"{path}?{one['name']}=1")
            assert error is None or error[0] != "unknown_parameter"
