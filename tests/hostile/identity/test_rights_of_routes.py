"""Every route of tenants names the rights that it needs, and a credential without one of them gets nothing there."""

from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from starlette.routing import Route, WebSocketRoute

from api.identity.access import HAS_TENANTS, Access
from api.identity.principal import Principal
from api.identity.rights import ALL_RIGHTS, Right
from api.identity.route_rights import needed_by
from api.routes import usage
from tests.component.app_with_fakes import CARD, FakeFrontend, a_client, an_app
from tests.component.socket_service import answer, socket_service
from tests.expected import of_kind

SOMEBODY = Principal(tenant="0123456789abcdef", project="proj_1", key="key_1", rights=ALL_RIGHTS)
CREDENTIAL = {"authorization": "Bearer somebody"}
MESSAGES = [{"role": "user", "content": "hello"}]
INPUT = {"model": "baton-demo", "input": "hello"}
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "baton-demo", "messages": MESSAGES},
    "/v1/completions": {"model": "baton-demo", "prompt": "hello"},
    "/v1/messages": {"model": "baton-demo", "messages": MESSAGES, "max_tokens": 8},
    "/v1/messages/count_tokens": {"model": "baton-demo", "messages": MESSAGES},
    "/v1/responses": INPUT,
    "/v1/responses/compact": INPUT,
    "/v1/responses/input_tokens": INPUT,
    "/tokenize": {"model": "baton-demo", "prompt": "hello"},
    "/detokenize": {"model": "baton-demo", "tokens": [1]},
}


def access_of(**principal: Any) -> Access:
    """That of a service where all credentials are of SOMEBODY, with these changes."""
    asking = msgspec.structs.replace(SOMEBODY, **principal)

    async def identify(credential: str) -> Principal:
        return asking

    return Access(identify, is_required=True)


def app_for(frontend: FakeFrontend | None = None, **principal: Any) -> FastAPI:
    """An application that SOMEBODY asks, with these changes."""
    return an_app(frontend or FakeFrontend(), access=access_of(**principal))


def routes() -> list[tuple[str, str, tuple[Right, ...]]]:
    """Methods, paths and needed rights of the whole surface of tenants."""
    declared = [*app_for().routes, *usage.router.routes]
    known = [of_kind(Route, route) for route in declared if not isinstance(route, WebSocketRoute)]
    return [
        (method, route.path, needed_by(route.endpoint))
        for route in known
        if route.path.startswith(HAS_TENANTS)
        for method in sorted(route.methods or ())
        if method != "HEAD"
    ]


def sockets() -> list[tuple[str, tuple[Right, ...]]]:
    """Paths and needed rights of all WebSockets."""
    found = [route for route in app_for().routes if isinstance(route, WebSocketRoute)]
    return [(route.path, needed_by(route.endpoint)) for route in found]


LACKING = [(method, path, right) for method, path, rights in routes() for right in rights]


async def asked(app: FastAPI, method: str, path: str, body: Any = None) -> httpx.Response:
    async with a_client(app) as client:
        filled = path.replace("{model:path}", "baton-demo").replace("{", "").replace("}", "_1")
        content = None if method != "POST" else body if body is not None else {}
        return await client.request(method, filled, json=content, headers=CREDENTIAL)


def code_of(answer: httpx.Response) -> str:
    """The code of an error, in OpenAI's shape or in Anthropic's."""
    error = answer.json()["error"]
    return str(error["code"] if "code" in error else error["details"]["error_code"])


def test_every_route_names_a_right() -> None:
    found = routes()
    assert len(found) > 30
    assert [(method, path) for method, path, rights in found if not rights] == []


def test_every_websocket_names_a_right_and_is_below_v1() -> None:
    assert sockets() == [("/v1/responses", (Right.INFERENCE,))]


async def test_websocket_without_the_right_is_refused_before_it_is_open() -> None:
    access = access_of(rights=ALL_RIGHTS - {Right.INFERENCE})
    async with socket_service(FakeFrontend(), access=access) as service:
        assert await service.refusal(additional_headers=CREDENTIAL) == (403, "insufficient_permissions")


@pytest.mark.parametrize(
    ("rights", "message", "right"),
    [
        ({Right.INFERENCE}, {"store": True}, Right.STATE_WRITE),
        ({Right.INFERENCE}, {"previous_response_id": "resp_1"}, Right.STATE_READ),
        ({Right.INFERENCE}, {"previous_response_id": "resp_1", "generate": False}, Right.STATE_READ),
    ],
)
async def test_messages_need_the_rights_of_requests(rights: set[Right], message: dict[str, Any], right: Right) -> None:
    frontend = FakeFrontend()
    async with socket_service(frontend, access=access_of(rights=rights)) as service:
        connection = await service.connection(additional_headers=CREDENTIAL)
        refused = await answer(connection, **message)
        assert (refused["status"], refused["error"]["code"]) == (403, "insufficient_permissions")
        assert f"'{right}'" in refused["error"]["message"] and not frontend.bodies


async def test_messages_need_a_model_that_the_credential_may_use() -> None:
    frontend = FakeFrontend()
    async with socket_service(frontend, access=access_of(models=frozenset({"other"}))) as service:
        connection = await service.connection(additional_headers=CREDENTIAL)
        refused = await answer(connection)
        assert (refused["status"], refused["error"]["code"]) == (403, "model_not_allowed")
        assert not frontend.bodies


@pytest.mark.parametrize(("method", "path", "right"), LACKING)
async def test_credential_without_the_right_is_refused(method: str, path: str, right: Right) -> None:
    frontend = FakeFrontend()
    app = app_for(frontend, rights=ALL_RIGHTS - {right})
    app.include_router(usage.router)
    answer = await asked(app, method, path)
    error = answer.json()["error"]
    assert (answer.status_code, code_of(answer)) == (403, "insufficient_permissions")
    assert f"'{right}'" in error["message"] and not frontend.bodies


@pytest.mark.parametrize(("method", "path", "rights"), routes())
async def test_the_rights_that_a_route_names_are_enough(method: str, path: str, rights: tuple[Right, ...]) -> None:
    app = app_for(rights=frozenset(rights))
    app.include_router(usage.router)
    assert (await asked(app, method, path)).status_code != 403


@pytest.mark.parametrize(
    ("path", "takes"),
    [
        ("/v1/responses", {"previous_response_id": "resp_1"}),
        ("/v1/responses", {"conversation": "conv_1"}),
        ("/v1/responses/compact", {"previous_response_id": "resp_1"}),
        ("/v1/responses/input_tokens", {"previous_response_id": "resp_1"}),
        ("/v1/responses/input_tokens", {"conversation": "conv_1"}),
    ],
)
async def test_who_may_not_read_cannot_have_the_model_read(path: str, takes: dict[str, str]) -> None:
    frontend = FakeFrontend()
    answer = await asked(app_for(frontend, rights={Right.INFERENCE}), "POST", path, {**INPUT, **takes})
    assert answer.status_code == 403 and "'state:read'" in answer.json()["error"]["message"] and not frontend.bodies


async def test_who_may_not_read_cannot_refer_to_an_item() -> None:
    reads = {"model": "baton-demo", "input": [{"type": "item_reference", "id": "msg_1"}], "store": False}
    answer = await asked(app_for(rights={Right.INFERENCE}), "POST", "/v1/responses", reads)
    assert answer.status_code == 403 and "or send the whole input" in answer.json()["error"]["message"]


async def test_who_may_not_write_is_told_to_store_nothing() -> None:
    for path in ("/v1/responses", "/v1/chat/completions"):
        app = app_for(rights={Right.INFERENCE})
        answer = await asked(app, "POST", path, {**GENERATING[path], "store": True})
        assert answer.status_code == 403
        assert "'state:write'" in (told := answer.json()["error"]["message"]) and '"store": false' in told
        assert (await asked(app, "POST", path, {**GENERATING[path], "store": False})).status_code != 403


@pytest.mark.parametrize("path", GENERATING)
async def test_model_that_the_credential_may_not_use_is_refused(path: str) -> None:
    frontend = FakeFrontend()
    refused = await asked(app_for(frontend, models=frozenset({"other"})), "POST", path, GENERATING[path])
    assert (refused.status_code, code_of(refused)) == (403, "model_not_allowed")
    assert not frontend.bodies
    admitted = await asked(app_for(models=frozenset({"baton-demo"})), "POST", path, GENERATING[path])
    assert admitted.status_code != 403


@pytest.mark.parametrize("model", [None, "", 5, ["baton-demo"], {}])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_credential_of_some_models_must_name_one(path: str, model: object) -> None:
    frontend = FakeFrontend()
    app = app_for(frontend, models=frozenset({"other"}))
    answer = await asked(app, "POST", path, {**GENERATING[path], "model": model})
    assert answer.status_code == 403 and "it may use other" in answer.json()["error"]["message"]
    assert not frontend.bodies


async def test_models_that_the_credential_may_not_use_are_not_shown() -> None:
    for models, shown in ((None, [CARD]), (frozenset({"baton-demo"}), [CARD]), (frozenset({"other"}), [])):
        app = app_for(models=models)
        assert (await asked(app, "GET", "/v1/models")).json()["data"] == shown
        assert (await asked(app, "GET", "/v1/models/baton-demo")).status_code == (200 if shown else 404)
