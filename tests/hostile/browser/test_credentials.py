"""A credential is a bearer token or none: whatever else is sent makes nobody another tenant."""

import msgspec
import pytest

from api.identity.credentials import MAX_CREDENTIAL_BYTES, key_of
from api.identity.principal import ANYBODY
from api.identity.tenants import PRINCIPAL, tenant_in_state, tenant_of
from cluster.errors import Unauthorized
from tests.component.app_with_fakes import CHAT, FakeFrontend, a_client, an_app

KEYS = [b"sk-1", b"a" * 1000, b"a.b_c~d+e/f-g=="]
REFUSED = [
    b"",
    b" ",
    b"Bearer",
    b"Bearer ",
    b"Basic dXNlcjpwYXNz",
    b"sk-1",
    b"Token sk-1",
    b"Bearer a b",
    b"Bearer a\tb",
    b"Bearer \x80\xff",
    b"Bearer sk-\xc3\xa9",
    b"Bearer a\x00b",
    b"BearerX",
    b"Bearer " + b"a" * MAX_CREDENTIAL_BYTES,
]
WITH_TENANTS = [
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("GET", CHAT),
    ("GET", "/v1/models"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/resp_1"),
    ("GET", "/v1/conversations"),
    ("POST", "/v1/conversations"),
    ("DELETE", "/v1/conversations/conv_1"),
]


@pytest.mark.parametrize("credential", REFUSED)
def test_credential_that_is_no_bearer_token_is_refused(credential: bytes) -> None:
    with pytest.raises(Unauthorized):
        key_of([(b"authorization", credential)])


@pytest.mark.parametrize("key", KEYS)
def test_bearer_token_is_the_key(key: bytes) -> None:
    for word in (b"Bearer ", b"bearer ", b"BEARER  "):
        assert key_of([(b"host", b"x"), (b"authorization", word + key)]) == key.decode()


@pytest.mark.parametrize("key", KEYS)
def test_key_in_a_header_of_its_own_is_read_where_it_is_expected(key: bytes) -> None:
    assert key_of([(b"x-api-key", key)], reads_api_key_header=True) == key.decode()
    with pytest.raises(Unauthorized, match="does not read the header x-api-key"):
        key_of([(b"x-api-key", key)])


def test_no_credential_is_no_key() -> None:
    assert key_of([(b"host", b"x")]) is None


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Basic x")],
        [("api-key", "sk-1")],
        [("x-api-key", "")],
        [("x-api-key", "Bearer sk-1")],
        [("x-api-key", "sk-1")] * 2,
        [("x-api-key", "sk-1"), ("authorization", "Bearer sk-1")],
        [("authorization", "Bearer a")] * 2,
        [("authorization", "Bearer a"), ("api-key", "a")],
    ],
)
@pytest.mark.parametrize(("method", "path"), WITH_TENANTS)
async def test_every_route_that_knows_tenants_refuses_it(
    headers: list[tuple[str, str]], method: str, path: str
) -> None:
    frontend = FakeFrontend()
    async with a_client(an_app(frontend)) as client:
        request = client.build_request(method, path, content=b"{}" if method == "POST" else None)
        request.headers = type(request.headers)([*request.headers.multi_items(), *headers])
        answer = await client.send(request)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert not frontend.bodies


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_what_knows_no_tenants_asks_for_no_credential(path: str) -> None:
    async with a_client(an_app(FakeFrontend())) as client:
        assert (await client.get(path, headers={"authorization": "Basic x"})).status_code == 200


class Asked:
    def __init__(self, tenant: str) -> None:
        principal = msgspec.structs.replace(ANYBODY, tenant=tenant)
        self.scope = {"state": {PRINCIPAL: principal}}


def test_who_sends_no_key_is_anonymous() -> None:
    assert (tenant_of(Asked("")), tenant_in_state(Asked(""))) == ("", "anonymous")
    assert tenant_in_state(Asked("ab")) == "ab"
