"""Every route of the admin port but the files of the page needs the admin key, and none is on the public port."""

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from api.identity.access import HAS_TENANTS
from api.identity.keys import new_key
from api.web.page_files import PageFiles
from tests.component.app_with_fakes import ADMIN_KEY, OPERATOR, FakeFrontend, a_client, an_admin_app, an_app
from tests.expected import of_kind

PUBLIC = an_app(FakeFrontend())
ADMIN = an_admin_app(PUBLIC)
ON_BOTH = {"/", "/healthz"}
"""The page, where the public port has only HEAD, by which clients ask whether a server is there."""
OF_TENANT = {"authorization": f"Bearer {new_key(bytes(range(48))).text}"}


def routes_of(app: FastAPI) -> list[tuple[str, str]]:
    """Methods and paths."""
    known = [of_kind(Route, route) for route in app.routes]
    return [(method, route.path) for route in known for method in sorted(route.methods or ()) if method != "HEAD"]


ROUTES = routes_of(ADMIN)
FILES = PageFiles(needs_key=True).paths
"""A browser sends no key when it opens the page. The files are in this repository, and show nothing of a service."""
GUARDED = [(method, path) for method, path in ROUTES if path not in FILES]


async def asked(app: FastAPI, method: str, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    async with a_client(app) as client:
        filled = path.replace("{", "").replace("}", "_1")
        return await client.request(method, filled, json={} if method == "POST" else None, headers=headers)


def test_admin_port_has_all_that_operators_ask() -> None:
    paths = {path for _, path in ROUTES}
    assert {"/metrics", "/baton/cells", "/baton/links", "/baton/queue", "/baton/receipts", "/healthz"} <= paths
    assert len([path for path in paths if path.startswith("/admin/")]) >= 10


def test_ports_have_no_route_in_common_but_what_says_that_they_are_there() -> None:
    public = {str(getattr(route, "path")) for route in PUBLIC.routes}  # noqa: B009  # WebSockets, too
    assert public & {path for _, path in ROUTES} == ON_BOTH
    assert {path for path in public if not path.startswith(HAS_TENANTS)} == {
        "/readyz",
        "/docs",
        "/openapi.json",
        *ON_BOTH,
    }


@pytest.mark.parametrize("headers", [{}, OF_TENANT, {"authorization": "Bearer baton-admin-"}, {"x-api-key": ADMIN_KEY}])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        *GUARDED,
        ("GET", "/nothing"),
        ("GET", "/page/"),
        ("GET", "/page/no.js"),
        ("GET", "/v1/models"),
        ("PUT", "/metrics"),
    ],
)
async def test_nothing_answers_without_the_admin_key(method: str, path: str, headers: dict[str, str]) -> None:
    answer = await asked(ADMIN, method, path, headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
    assert ADMIN_KEY not in answer.text


@pytest.mark.parametrize("path", sorted(FILES))
async def test_files_of_the_page_are_read_without_a_key_and_nothing_else_is_done_there(path: str) -> None:
    assert (await asked(ADMIN, "GET", path)).status_code == 200
    for method in ("POST", "PUT", "DELETE"):
        assert (await asked(ADMIN, method, path)).status_code == 405


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_with_it_every_route_answers(method: str, path: str) -> None:
    assert (await asked(ADMIN, method, path, OPERATOR)).status_code in (200, 400, 404, 503)


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[1] not in ON_BOTH])
async def test_public_port_knows_none_of_them_even_with_the_admin_key(method: str, path: str) -> None:
    answer = await asked(PUBLIC, method, path, OPERATOR)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/chat/completions")])
async def test_public_port_refuses_the_admin_key(method: str, path: str) -> None:
    answer = await asked(PUBLIC, method, path, OPERATOR)
    assert answer.status_code == 401 and "admin.port" in answer.json()["error"]["message"]


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
@pytest.mark.parametrize("key", [ADMIN_KEY, None])
async def test_page_of_another_origin_gets_nothing_even_if_the_public_port_serves_it(
    origin: str, key: str | None
) -> None:
    admin = an_admin_app(an_app(FakeFrontend(), cors_origins=["*"]), key)
    for method in ("GET", "OPTIONS", "POST"):
        answer = await asked(admin, method, "/admin/tenants", {**OPERATOR, "origin": origin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in answer.headers


async def test_name_that_a_page_has_given_to_this_machine_is_refused_before_the_key_is_looked_at() -> None:
    admin = an_admin_app(an_app(FakeFrontend(), allowed_hosts=[]))
    answer = await asked(admin, "GET", "/metrics", {"host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host_not_allowed")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/admin/tenants", {"name": "x", "settings": {}}),
        ("/admin/tenants/t", {"name": "x", "id": "y"}),
        ("/admin/tenants/t/projects", {"name": "x", "tenant": "y"}),
        ("/admin/projects/p", {"archived": True}),
        ("/admin/tenants/t/keys", {"name": "x", "key": "y"}),
        ("/admin/keys/k", {"revoked": True}),
        ("/admin/keys/k/rotate", {"overlap": 1}),
    ],
)
async def test_field_that_does_not_exist_is_refused(path: str, body: dict[str, Any]) -> None:
    async with a_client(ADMIN) as client:
        answer = await client.post(path, json=body, headers=OPERATOR)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_parameter")
