"""What a web page may do through the browser of whoever visits it: nothing, unless the operator has listed it."""

from typing import Any

import httpx
import pytest

from api.edge.hosts import HostRule
from api.wire.response_headers import EXPOSED
from tests.component.app_with_fakes import CHAT, FakeFrontend, a_client, an_app

EVIL = "https://evil.example"
PAGE = "https://chat.example.com"


def client(**config: Any) -> httpx.AsyncClient:
    return a_client(an_app(FakeFrontend(), **config))


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "www.notlocalhost", "127.0.0.1.nip.io"]
)
@pytest.mark.parametrize("listens_on", ["127.0.0.1", "0.0.0.0"])
async def test_name_that_a_stranger_can_register_is_refused(host: str, listens_on: str) -> None:
    async with client(allowed_hosts=[], host=listens_on) as browser:
        for method, path in (("GET", "/v1/models"), ("GET", "/healthz"), ("POST", CHAT)):
            answer = await browser.request(method, path, headers={"host": host})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (421, "host_not_allowed")
            assert "ingress.allowed_hosts" in error["message"]


ON_LOOPBACK = ["localhost", "LOCALHOST:8000", "localhost.", "a.localhost", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000"]
INSIDE = [
    "10.0.0.5:8000",
    "baton",
    "machine.example.org",
    "baton.svc",
    "a.b.svc.cluster.local",
    "x.internal",
    "n.local",
]
STRANGE = [
    "",
    " ",
    "a b",
    "localhost@evil.example",
    "localhost:8000:1",
    "evil.example#.local",
    "a/../localhost",
    "\x00",
]
STRANGE += ["[::1", "localhost:x", "x" * 400, "1.2.3.4.5"]


@pytest.mark.parametrize("host", ON_LOOPBACK)
@pytest.mark.parametrize("listens_on", ["127.0.0.1", "0.0.0.0"])
def test_names_of_this_machine_pass(host: str, listens_on: str) -> None:
    assert HostRule([], listens_on, "machine.example.org").allows(host.encode())


@pytest.mark.parametrize("host", INSIDE)
def test_names_that_strangers_cannot_have_pass_unless_it_listens_on_loopback(host: str) -> None:
    assert HostRule([], "0.0.0.0", "Machine.example.org").allows(host.encode())
    assert not HostRule([], "127.0.0.1", "machine.example.org").allows(host.encode())


@pytest.mark.parametrize("host", STRANGE)
def test_what_is_no_host_does_not_pass(host: str) -> None:
    assert not HostRule([], "0.0.0.0", "machine").allows(host.encode("latin-1"))


def test_listed_names_pass() -> None:
    rule = HostRule(["chat.example.com", "*.example.org"], "127.0.0.1", "machine")
    passes = {name: rule.allows(name) for name in (b"chat.example.com", b"CHAT.example.com.:80", b"a.b.example.org")}
    assert all(passes.values())
    assert not any(map(rule.allows, (b"example.org", b"x.chat.example.com", b"evilexample.org")))
    assert HostRule(["*"], "127.0.0.1", "machine").allows(b"anything.example")


@pytest.mark.parametrize(
    "origin", [EVIL, "null", "http://localhost:3000", "http://baton:1", "https://baton.evil.example", ""]
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/models"), ("GET", "/readyz"), ("POST", CHAT), ("DELETE", "/v1/conversations/x")]
)
async def test_page_of_another_origin_reads_and_writes_nothing(origin: str, method: str, path: str) -> None:
    async with client() as browser:
        answer = await browser.request(method, path, headers={"origin": origin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    ["ftp://baton", "file://baton", "chrome-extension://baton", "ws://baton", "://baton", "baton", "http://baton:443"],
)
async def test_origin_that_no_web_page_of_this_service_has_is_refused(origin: str) -> None:
    async with client() as browser:
        answer = await browser.post(CHAT, json={}, headers={"origin": origin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize(
    "header", [("host", "evil.example"), ("origin", EVIL), ("content-type", "text/plain")], ids=lambda header: header[0]
)
@pytest.mark.parametrize("is_same", [True, False])
async def test_header_that_is_checked_may_not_be_sent_twice(header: tuple[str, str], is_same: bool) -> None:
    """A proxy in front could read the other one."""
    right = {"host": "baton", "origin": "http://baton", "content-type": "application/json"}
    name, wrong = header
    headers = [*right.items(), (name, right[name] if is_same else wrong)]
    frontend = FakeFrontend()
    async with a_client(an_app(frontend)) as browser:
        browser.headers.clear()
        answer = await browser.post(CHAT, content=b"{}", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "repeated_header")
        assert not frontend.bodies


@pytest.mark.parametrize("origin", ["http://baton", "http://baton:80", "https://baton"])
async def test_page_of_its_own_origin_may_ask(origin: str) -> None:
    async with client() as browser:
        assert (await browser.post(CHAT, json={}, headers={"origin": origin})).status_code == 200


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        None,
        "",
        "application/octet-stream",
        "text/json",
        "application/jsonp",
        "application/json, text/plain",
        "json",
    ],
)
async def test_what_a_form_can_post_is_not_read(content_type: str | None) -> None:
    frontend = FakeFrontend()
    async with a_client(an_app(frontend)) as browser:
        del browser.headers["content-type"]
        headers = {} if content_type is None else {"content-type": content_type}
        answer = await browser.post(CHAT, content=b'{"model":"baton-demo"}', headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
        assert not frontend.bodies


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"]
)
async def test_json_is_read(content_type: str) -> None:
    async with client() as browser:
        answer = await browser.post(CHAT, content=b"{}", headers={"content-type": content_type})
        assert answer.status_code == 200


async def test_listed_page_may_ask_and_read() -> None:
    async with client(cors_origins=[PAGE]) as browser:
        headers = {
            "origin": PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type, x-stainless-os",
        }
        asked = await browser.options(CHAT, headers=headers)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == PAGE
        allowed = asked.headers["access-control-allow-headers"].lower()
        assert all(name in allowed for name in ("authorization", "content-type", "x-stainless-os"))
        answer = await browser.post(CHAT, json={}, headers={"origin": PAGE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        assert answer.headers["access-control-expose-headers"].split(", ") == list(EXPOSED)
        assert {name for name in answer.headers if name.startswith("x-baton-")} <= set(EXPOSED)
        assert "access-control-allow-credentials" not in answer.headers


async def test_listed_page_can_read_its_errors() -> None:
    async with client(cors_origins=[PAGE]) as browser:
        headers = {"origin": PAGE, "authorization": "Basic x"}
        answer = await browser.get("/v1/models", headers=headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, PAGE)


async def test_other_pages_are_refused_before_they_ask() -> None:
    async with client(cors_origins=[PAGE]) as browser:
        answer = await browser.options(CHAT, headers={"origin": EVIL, "access-control-request-method": "POST"})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


async def test_star_lists_all_pages() -> None:
    async with client(cors_origins=["*"]) as browser:
        answer = await browser.post(CHAT, json={}, headers={"origin": EVIL})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/nowhere"])
async def test_answers_are_what_they_say_and_nobody_keeps_them(path: str) -> None:
    async with client() as browser:
        answer = await browser.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
