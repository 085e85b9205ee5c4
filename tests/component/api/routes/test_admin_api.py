"""The admin API over HTTP, with accounts in a real PostgreSQL."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import psycopg
import pytest

from api.charging.charging import Charging
from api.identity.keys import PREFIX, digest
from api.identity.rights import DEFAULT_RIGHTS
from api.metering.meter import Meter
from api.routes.admin.requests import ACTOR, AS_HEADER
from api.state.lifecycle import ChatState
from api.state.postgres.ledger.entries import UsageRow
from cluster.config.tenants.limits import LimitsConfig
from cluster.errors import Conflict, NotFound, ServingError, StateUnavailable, WorkerUnreachable
from cluster.messages.operations import ServiceStatus
from tests.component.accounts import accounts_at
from tests.component.app_with_fakes import OPERATOR, FakeCluster, FakeFrontend, a_client, an_admin_app, an_app
from tests.unit.fake_ports import FakeObserver
from tests.unit.usage_rows import JUNE_MS, TENANT, a_row

NOBODY = "0" * 16


class Operator:
    """Somebody with the admin key."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def get(self, path: str, **query: Any) -> Any:
        return await self._answer("GET", path, params=query)

    async def post(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
        return await self._answer("POST", path, json={} if body is None else body, headers=OPERATOR | headers)

    async def delete(self, path: str) -> Any:
        return await self._answer("DELETE", path)

    async def refused(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, str]:
        """The status, the code and the message."""
        answer = await self._client.request(method, path, json=body, headers=OPERATOR | headers)
        error = answer.json()["error"]
        return answer.status_code, error["code"], error["message"]

    async def tenant(self, name: str = "team", **fields: Any) -> dict[str, Any]:
        made: dict[str, Any] = await self.post("/admin/tenants", {"name": name, **fields})
        return made

    async def key(self, tenant: str, **fields: Any) -> dict[str, Any]:
        made: dict[str, Any] = await self.post(f"/admin/tenants/{tenant}/keys", {"name": "laptop", **fields})
        return made

    async def log(self, **query: Any) -> list[tuple[str, str]]:
        """Who has done what, the newest first."""
        return [(one["actor"], one["action"]) for one in (await self.get("/admin/changes", **query))["data"]]

    async def _answer(self, method: str, path: str, **options: Any) -> Any:
        answer = await self._client.request(method, path, **({"headers": OPERATOR} | options))
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
async def operator(state: ChatState) -> AsyncIterator[Operator]:
    async with a_client(an_admin_app(an_app(FakeFrontend(), state=state))) as client:
        yield Operator(client)


async def test_tenant_is_made_shown_and_changed(operator: Operator) -> None:
    made = await operator.tenant("search team", limits={"requests_per_minute": 60}, weight=2)
    project = made.pop("default_project_id")
    assert made.pop("created_at") == pytest.approx(time.time(), abs=60)
    identity = made.pop("id")
    assert project.startswith("proj_") and len(identity) == 16
    assert made == {
        "object": "tenant",
        "name": "search team",
        "status": "active",
        "limits": {"requests_per_minute": 60},
        "end_user_limits": {},
        "model_limits": {},
        "weight": 2.0,
        "share_prefixes": False,
        "best_class": "interactive",
    }
    for name in (identity, "search team"):
        assert (await operator.get(f"/admin/tenants/{name}"))["id"] == identity
    change = {
        "name": "search",
        "status": "suspended",
        "limits": {"requests_per_minute": "default", "tokens_per_day": None, "cost_per_day": 5},
        "end_user_limits": {"concurrent_requests": 2},
        "model_limits": {"m": {"tokens_per_day": 9}},
    }
    changed = await operator.post(f"/admin/tenants/{identity}", change, **{AS_HEADER: "alice"})
    assert changed["limits"] == {"tokens_per_day": None, "cost_per_day": 5}
    assert (changed["name"], changed["status"], changed["weight"]) == ("search", "suspended", 2.0)
    assert (changed["end_user_limits"], changed["model_limits"]) == (change["end_user_limits"], change["model_limits"])
    assert await operator.post(f"/admin/tenants/{identity}") == changed  # nothing is named
    assert (await operator.post("/admin/tenants/search", {"status": "active"}))["status"] == "active"
    assert await operator.log() == [
        (ACTOR, "tenant.resume"),
        ("alice", "tenant.suspend"),
        ("alice", "tenant.set"),
        ("alice", "tenant.rename"),
        (ACTOR, "project.create"),
        (ACTOR, "tenant.create"),
    ]


async def test_tenant_opts_into_public_prefixes_and_out_of_them(operator: Operator) -> None:
    path = f"/admin/tenants/{(await operator.tenant(weight=2))['id']}"
    assert (await operator.post(path, {"share_prefixes": True}))["share_prefixes"] is True
    changed = await operator.post(path, {"weight": 3})
    assert (changed["share_prefixes"], changed["weight"]) == (True, 3.0), "what is not named stays"
    assert (await operator.post(path, {"share_prefixes": False}))["share_prefixes"] is False
    logged = (await operator.get("/admin/changes"))["data"]
    shared = [one["after"]["settings"].get("share_prefixes") for one in logged if one["action"] == "tenant.set"]
    assert shared == [None, True, True]
    assert (await operator.tenant("other", share_prefixes=True))["share_prefixes"] is True


async def test_limits_of_cost_are_refused_where_nothing_has_a_price(state: ChatState) -> None:
    unused: Any = None
    meter = Meter(unused, None, "i0", FakeObserver())
    charging = Charging(LimitsConfig(), "m", meter=meter, recorder=unused, reserver=unused, hashed=str)
    async with a_client(an_admin_app(an_app(FakeFrontend(), state=state, charging=charging))) as client:
        operator = Operator(client)
        tenant = (await operator.tenant(limits={"cost_per_day": None, "tokens_per_day": 5}))["id"]
        for path, body in (
            ("tenants", {"name": "other", "limits": {"cost_per_day": 5}}),
            (f"tenants/{tenant}", {"end_user_limits": {"cost_per_day": 5}}),
            (f"tenants/{tenant}", {"model_limits": {"m": {"cost_per_month": 0}}}),
            (f"tenants/{tenant}/projects", {"name": "p", "limits": {"cost_per_day": 5}}),
            (f"tenants/{tenant}/keys", {"name": "k", "limits": {"cost_per_day": 5}}),
        ):
            status, code, message = await operator.refused("POST", f"/admin/{path}", body)
            assert (status, code) == (400, "invalid_value")
            assert "would never bind" in message and "metering.prices" in message


async def test_best_class_of_a_tenant_is_set(operator: Operator) -> None:
    path = f"/admin/tenants/{(await operator.tenant(best_class='batch'))['id']}"
    assert (await operator.get(path))["best_class"] == "batch"
    assert (await operator.post(path, {"best_class": "standard"}))["best_class"] == "standard"
    assert (await operator.post(path, {"weight": 3}))["best_class"] == "standard", "what is not named stays"
    assert (await operator.post(path, {"best_class": "interactive"}))["best_class"] == "interactive"


async def test_change_that_is_refused_in_part_changes_nothing(operator: Operator) -> None:
    tenant, _ = await operator.tenant(), await operator.tenant("other")
    path = f"/admin/tenants/{tenant['id']}"
    for body in (
        {"name": "other", "status": "suspended", "weight": 3},
        {"name": "new", "limits": {"tokens_per_day": -1}},
        {"name": "new", "status": "gone"},
    ):
        status, _, _ = await operator.refused("POST", path, body)
        assert status in (400, 409)
    assert await operator.get(path) == {name: value for name, value in tenant.items() if name != "default_project_id"}
    project = await operator.post(f"{path}/projects", {"name": "p"})
    default = tenant["default_project_id"]
    refused = await operator.refused(
        "POST", f"/admin/projects/{default}", {"limits": {"tokens_per_day": 1}, "status": "archived"}
    )
    assert refused[:2] == (409, "default_project")
    found = (await operator.get(f"{path}/projects"))["data"]
    assert {one["id"]: one["limits"] for one in found} == {default: {}, project["id"]: {}}


async def test_project_is_made_limited_and_archived(operator: Operator) -> None:
    tenant = await operator.tenant()
    made = await operator.post(
        f"/admin/tenants/{tenant['id']}/projects", {"name": "web", "limits": {"cost_per_day": 1}}
    )
    assert (made["object"], made["tenant_id"], made["name"], made["is_default"]) == (
        "project",
        tenant["id"],
        "web",
        False,
    )
    assert (made["status"], made["archived_at"], made["limits"]) == ("active", None, {"cost_per_day": 1})
    body = {"limits": {"tokens_per_day": 4}, "status": "archived"}
    changed = await operator.post(f"/admin/projects/{made['id']}", body)
    assert (changed["status"], changed["limits"]) == ("archived", {"cost_per_day": 1, "tokens_per_day": 4})
    assert changed["archived_at"] == pytest.approx(time.time(), abs=60)
    assert await operator.post(f"/admin/projects/{made['id']}", body) == changed
    assert (await operator.log())[:3] == [(ACTOR, "project.archive"), (ACTOR, "project.set"), (ACTOR, "project.create")]
    refused = await operator.refused(
        "POST", f"/admin/tenants/{tenant['id']}/keys", {"name": "k", "project_id": made["id"]}
    )
    assert refused[:2] == (409, "project_archived")


async def test_key_is_shown_once_and_works(operator: Operator, postgres: str) -> None:
    tenant = await operator.tenant()
    until = int(time.time()) + 3600
    made = await operator.key(
        tenant["id"], rights=["inference"], models=["m"], limits={"tokens_per_minute": 7}, expires_at=until
    )
    text = made.pop("value")
    async with accounts_at(postgres) as accounts:
        known = (await accounts.known.look_up([digest(text)]))[digest(text)]
    assert (known.tenant, known.principal.key, known.principal.models) == (tenant["id"], made["id"], frozenset({"m"}))
    assert made["redacted_value"] == f"{PREFIX}{known.handle}-…"
    assert (made["rights"], made["models"], made["expires_at"]) == (["inference"], ["m"], until)
    (listed,) = (await operator.get(f"/admin/tenants/{tenant['id']}/keys"))["data"]
    assert listed == made
    assert text not in str(await operator.get("/admin/changes"))


async def test_key_is_changed_field_by_field(operator: Operator) -> None:
    key = await operator.key((await operator.tenant())["id"], models=["m"], expires_at=time.time() + 3600)
    path = f"/admin/keys/{key['id']}"
    renamed = await operator.post(path, {"name": "phone"})
    assert renamed == {**{name: value for name, value in key.items() if name != "value"}, "name": "phone"}
    changed = await operator.post(
        path, {"rights": ["usage:read"], "models": None, "expires_at": None, "limits": {"tokens_per_day": 1}}
    )
    assert (changed["rights"], changed["models"], changed["expires_at"]) == (["usage:read"], None, None)
    assert (changed["limits"], changed["name"]) == ({"tokens_per_day": 1}, "phone")
    assert set((await operator.key(key["tenant_id"]))["rights"]) == DEFAULT_RIGHTS


async def test_key_is_rotated_and_revoked(operator: Operator, postgres: str) -> None:
    key = await operator.key((await operator.tenant())["id"])
    new = await operator.post(f"/admin/keys/{key['id']}/rotate", {"overlap_s": 60})
    assert new["value"] != key["value"] and new["name"] == key["name"]
    old, _ = (await operator.get(f"/admin/tenants/{key['tenant_id']}/keys"))["data"]
    assert old["rotated_to"] == new["id"] and old["expires_at"] == pytest.approx(time.time() + 60, abs=30)
    again = await operator.refused("POST", f"/admin/keys/{key['id']}/rotate")
    assert again[:2] == (409, "key_rotated")
    revoked = await operator.delete(f"/admin/keys/{new['id']}")
    assert revoked["revoked_at"] is not None and await operator.delete(f"/admin/keys/{new['id']}") == revoked
    async with accounts_at(postgres) as accounts:
        known = await accounts.known.look_up([digest(new["value"])])
    assert known[digest(new["value"])].is_revoked
    assert (await operator.log())[:3] == [(ACTOR, "key.revoke"), (ACTOR, "key.rotate"), (ACTOR, "key.create")]


async def test_lists_have_pages(operator: Operator) -> None:
    tenants = [await operator.tenant(f"t{number}") for number in range(5)]
    tenant = tenants[0]["id"]
    for number in range(4):
        await operator.key(tenant, name=f"k{number}")
        await operator.post(f"/admin/tenants/{tenant}/projects", {"name": f"p{number}"})
    lists = {
        "/admin/tenants": 5,
        f"/admin/tenants/{tenant}/keys": 4,
        f"/admin/tenants/{tenant}/projects": 5,
        "/admin/changes": 5 * 2 + 8,
    }
    for path, number in lists.items():
        whole = await operator.get(path, limit=100)
        assert (len(whole["data"]), whole["has_more"], whole["object"]) == (number, False, "list")
        found, page = [], await operator.get(path, limit=2)
        while True:
            assert page["first_id"] == page["data"][0]["id"]
            found += page["data"]
            if not page["has_more"]:
                break
            page = await operator.get(path, limit=2, after=page["last_id"])
        assert found == whole["data"]
        assert (await operator.refused("GET", f"{path}?limit=0"))[:2] == (400, "invalid_value")
        wrong = "asc" if path == "/admin/changes" else "desc"
        assert "leave the parameter out" in (await operator.refused("GET", f"{path}?order={wrong}"))[2]
    assert [key["name"] for key in (await operator.get(f"/admin/tenants/{tenant}/keys"))["data"]] == [
        f"k{number}" for number in range(4)
    ]


async def test_lists_are_filtered(operator: Operator) -> None:
    first, second = await operator.tenant("first"), await operator.tenant("second")
    project = await operator.post("/admin/tenants/first/projects", {"name": "p"})
    key = await operator.key("first", project_id=project["id"])
    await operator.key("first")
    (found,) = (await operator.get("/admin/tenants/first/keys", project_id=project["id"]))["data"]
    assert found["id"] == key["id"]
    assert len(await operator.log(tenant_id=second["id"])) == 2
    assert len(await operator.log(tenant_id="first")) == 5
    assert first["id"] != second["id"]


@pytest.mark.parametrize(
    ("path", "body", "code", "says"),
    [
        ("/admin/tenants", {}, "missing_required_parameter", "name"),
        ("/admin/tenants", {"name": 5}, "invalid_type", "Expected `str`, got `int`"),
        ("/admin/tenants", {"name": ""}, "invalid_value", "1 to 200 characters"),
        ("/admin/tenants", {"name": "a\nb"}, "invalid_value", "control characters"),
        ("/admin/tenants", {"name": "x", "limits": {"requests": 5}}, "invalid_value", "the limits are requests_per"),
        ("/admin/tenants", {"name": "x", "limits": {"requests_per_minute": 0}}, "invalid_value", ">= 1"),
        ("/admin/tenants", {"name": "x", "limits": {"requests_per_minute": "none"}}, "invalid_type", "limits"),
        ("/admin/tenants", {"name": "x", "limits": {"requests_per_minute": True}}, "invalid_type", "bool"),
        ("/admin/tenants", {"name": "x", "limits": {"tokens_per_day": 10**16}}, "invalid_value", "<="),
        ("/admin/tenants", {"name": "x", "limits": {"tokens_per_day": 10**30}}, "invalid_value", "tokens_per_day"),
        ("/admin/tenants", {"name": "x", "weight": 0}, "invalid_value", "weight"),
        ("/admin/tenants", {"name": "x", "weight": "1"}, "invalid_type", "weight"),
        ("/admin/tenants", {"name": "x", "share_prefixes": "on"}, "invalid_type", "bool"),
        ("/admin/tenants", {"name": "x", "share_prefixes": 1}, "invalid_type", "bool"),
        ("/admin/tenants", {"name": "x", "best_class": "gold"}, "invalid_type", "best_class"),
        ("/admin/tenants", {"name": "x", "model_limits": {"": {"tokens_per_day": 1}}}, "invalid_value", "model_limits"),
        (
            "/admin/tenants",
            {"name": "x", "model_limits": {f"m{number}": {"tokens_per_day": 1} for number in range(101)}},
            "invalid_value",
            "more than 100 models",
        ),
        ("/admin/tenants", [], "invalid_type", "must be a JSON object"),
        ("/admin/tenants/team", {"status": "gone"}, "invalid_type", "gone"),
        ("/admin/tenants/team", {"nmae": "x"}, "unknown_parameter", "nmae"),
        ("/admin/tenants/team/keys", {"name": "k", "rights": ["all"]}, "invalid_value", "the rights are inference"),
        ("/admin/tenants/team/keys", {"name": "k", "rights": []}, "invalid_value", "can do nothing"),
        ("/admin/tenants/team/keys", {"name": "k", "rights": "inference"}, "invalid_type", "rights"),
        ("/admin/tenants/team/keys", {"name": "k", "models": []}, "invalid_value", "1 to 100 models"),
        ("/admin/tenants/team/keys", {"name": "k", "expires_at": 1}, "invalid_value", "expired already"),
        ("/admin/tenants/team/keys", {"name": "k", "expires_at": 1e300}, "invalid_value", "no Unix time"),
        ("/admin/tenants/team/keys", {"name": "k", "expires_at": "2030-01-01"}, "invalid_type", "expires_at"),
        ("/admin/tenants/team/projects", {"name": "default"}, "name_taken", "another name"),
    ],
    ids=str,
)
async def test_body_that_is_wrong_is_refused_with_what_to_change(
    operator: Operator, path: str, body: Any, code: str | None, says: str
) -> None:
    await operator.tenant()
    status, found, message = await operator.refused("POST", path, body)
    assert status in (400, 409) and says in message
    assert code is None or found == code


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", f"/admin/tenants/{NOBODY}", "tenant_not_found"),
        ("POST", f"/admin/tenants/{NOBODY}", "tenant_not_found"),
        ("GET", "/admin/tenants/%00", None),
        ("GET", f"/admin/tenants/{NOBODY}/keys", "tenant_not_found"),
        ("GET", f"/admin/tenants/{NOBODY}/projects", "tenant_not_found"),
        ("GET", f"/admin/changes?tenant_id={NOBODY}", "tenant_not_found"),
        ("GET", "/admin/changes?after=7", "invalid_value"),
        ("GET", "/admin/changes?after=change_-1", "invalid_value"),
        ("GET", f"/admin/changes?after=change_{'9' * 30}", "invalid_value"),
        ("POST", "/admin/projects/proj_0", "project_not_found"),
        ("POST", "/admin/keys/key_0", "key_not_found"),
        ("POST", "/admin/keys/key_0/rotate", "key_not_found"),
        ("DELETE", "/admin/keys/key_0", "key_not_found"),
        ("GET", "/admin/usage", "missing_required_parameter"),
        ("GET", "/admin/usage?start_time=0&group_by=team", "invalid_value"),
        ("GET", "/admin/usage?start_time=0&tenants=a", "unknown_parameter"),
        ("GET", "/admin/nothing", "unknown_url"),
    ],
)
async def test_what_does_not_exist_is_said_to(operator: Operator, method: str, path: str, code: str | None) -> None:
    status, found, _ = await operator.refused(method, path, {} if method == "POST" else None)
    assert status in (400, 404) and (code is None or found == code)


async def test_key_that_never_would_end_a_rotation_is_refused(operator: Operator) -> None:
    key = await operator.key((await operator.tenant())["id"])
    for overlap_s in (-1, 1e9):
        refused = await operator.refused("POST", f"/admin/keys/{key['id']}/rotate", {"overlap_s": overlap_s})
        assert refused[:2] == (400, "invalid_value")


@pytest.mark.parametrize(("name", "code"), [("", "invalid_value"), (" x", None), ("a" * 201, "invalid_value")])
async def test_name_of_who_makes_a_change_must_be_one(operator: Operator, name: str, code: str | None) -> None:
    status, found, message = await operator.refused("POST", "/admin/tenants", {"name": "t"}, **{AS_HEADER: name})
    assert code is None or (status, found) == (400, code)
    assert code is None or AS_HEADER in message


async def test_name_of_who_makes_a_change_may_have_all_letters(state: ChatState) -> None:
    async with a_client(an_admin_app(an_app(FakeFrontend(), state=state))) as client:
        headers = [(b"authorization", OPERATOR["authorization"].encode()), (AS_HEADER.encode(), "Zoë".encode())]
        await client.post("/admin/tenants", json={"name": "t"}, headers=headers)
        twice = await client.post("/admin/tenants", json={"name": "u"}, headers=[*headers, headers[1]])
        assert twice.json()["error"]["code"] == "repeated_header"
        odd = await client.post("/admin/tenants", json={"name": "u"}, headers=[headers[0], (headers[1][0], b"\xff")])
        assert "must be UTF-8" in odd.json()["error"]["message"]
        assert (await Operator(client).log())[0] == ("Zoë", "project.create")


async def test_text_that_cannot_be_stored_is_refused(state: ChatState) -> None:
    async with a_client(an_admin_app(an_app(FakeFrontend(), state=state))) as client:
        for text in (b'{"name": "\\ud800"}', b'{"name": "a\\u0000b"}', b'{"name": "a", "weight": NaN}'):
            answer = await client.post("/admin/tenants", content=text, headers=OPERATOR)
            assert answer.status_code == 400, answer.text


async def test_concurrent_changes_are_all_kept(operator: Operator) -> None:
    tenant = (await operator.tenant())["id"]
    limits = ["requests_per_minute", "tokens_per_minute", "concurrent_requests", "tokens_per_day", "cost_per_day"]
    await asyncio.gather(*(operator.post(f"/admin/tenants/{tenant}", {"limits": {name: 5}}) for name in limits))
    assert (await operator.get(f"/admin/tenants/{tenant}"))["limits"] == dict.fromkeys(limits, 5)


async def test_settings_that_cannot_be_read_do_not_keep_a_tenant_from_being_suspended(
    operator: Operator, postgres: str
) -> None:
    tenant = (await operator.tenant())["id"]
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])
        connection.execute("""UPDATE accounts SET settings = '{"weight": "heavy"}'""")
    path = f"/admin/tenants/{tenant}"
    status, _, message = await operator.refused("POST", path, {"limits": {"tokens_per_day": 1}})
    assert status == 500 and f"what is stored of tenant {tenant} cannot be read" in message
    assert (await operator.post(path, {"status": "suspended"}))["status"] == "suspended"


async def test_usage_and_costs_are_those_of_all_tenants(operator: Operator, state: ChatState) -> None:
    other = "f" * 16
    rows: list[UsageRow] = [
        a_row(cost_micros=1_500_000, currency="usd"),
        a_row(tenant_id=other, cost_micros=500_000, currency="usd"),
        a_row(tenant_id=other, cost_micros=500_000, currency="usd"),
    ]
    await state.stores.ledger.write([], [], rows)
    day = {"start_time": JUNE_MS // 1000 - 86400, "limit": 3}
    for query, counts in (
        ({}, {None: 3}),
        ({"group_by": "tenant_id"}, {TENANT: 1, other: 2}),
        ({"group_by": "tenant_id", "tenant_ids": other}, {other: 2}),
        ({"group_by": "tenant_id,model", "tenant_ids": "nobody"}, {}),
    ):
        page = await operator.get("/admin/usage", **day, **query)
        results = [one for bucket in page["data"] for one in bucket["results"]]
        assert {one["tenant_id"]: one["num_model_requests"] for one in results} == counts
    page = await operator.get("/admin/costs", **day, group_by="tenant_id")
    results = [one for bucket in page["data"] for one in bucket["results"]]
    assert {one["tenant_id"]: one["amount"]["value"] for one in results} == {TENANT: 1.5, other: 1.0}


async def test_while_postgres_was_never_reached_the_rest_of_the_port_answers() -> None:
    async with a_client(an_admin_app(an_app(FakeFrontend()))) as client:
        assert (await client.get("/metrics", headers=OPERATOR)).status_code == 200
        for path in ("/admin/tenants", "/admin/usage?start_time=0"):
            answer = await client.get(path, headers=OPERATOR)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")


# ---- workers


async def test_drain_of_a_worker_is_told_to_the_scheduler_and_logged(operator: Operator, state: ChatState) -> None:
    drained = await operator.post("/admin/workers/d0", {"draining": True}, **{AS_HEADER: "ann"})
    assert drained == {"id": "d0", "object": "worker", "draining": True, "changed": True}
    again = await operator.post("/admin/workers/d0", {"draining": True})
    assert again["changed"] is False
    await operator.post("/admin/workers/d0", {"draining": False})
    assert await operator.log() == [(ACTOR, "worker.undrain"), ("ann", "worker.drain")]
    (_, done) = (await operator.get("/admin/changes"))["data"]
    assert (done["object_id"], done["tenant_id"]) == ("d0", "*")
    assert await state.administration(print).tenants() == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("no worker", "worker", "worker_not_found"), 404),
        (Conflict("the last worker", "worker", "last_worker_of_pool"), 409),
        (StateUnavailable("Ray is away", 2.0), 503),
    ],
)
async def test_drain_that_the_scheduler_refuses_is_not_logged(
    state: ChatState, error: ServingError, status: int
) -> None:
    async with a_client(an_admin_app(an_app(FakeFrontend(), FakeCluster(error=error), state=state))) as client:
        operator = Operator(client)
        refused = await operator.refused("POST", "/admin/workers/d0", {"draining": True})
        assert refused == (status, error.code, str(error))
        assert await operator.log() == []


@pytest.mark.parametrize("body", [{}, {"draining": 1}, {"draining": True, "also": 1}, []])
async def test_drain_needs_a_valid_body(operator: Operator, body: Any) -> None:
    status, _, _ = await operator.refused("POST", "/admin/workers/d0", body)
    assert status == 400


async def test_drain_needs_the_admin_key(state: ChatState) -> None:
    async with a_client(an_admin_app(an_app(FakeFrontend(), state=state))) as client:
        assert (await client.post("/admin/workers/d0", json={"draining": True})).status_code == 401


async def test_status_shows_the_service_also_without_a_scheduler(state: ChatState) -> None:
    for error in (None, WorkerUnreachable("the Scheduler cannot be reached", "scheduler")):
        cluster = FakeCluster(error=error)
        async with a_client(an_admin_app(an_app(FakeFrontend(), cluster, state=state))) as client:
            shown = msgspec.convert(await Operator(client).get("/baton/status"), ServiceStatus)
        assert [worker.worker for one in shown.schedulers for worker in one.workers] == ([] if error else ["p0", "d0"])
        assert [store.name for store in shown.stores] == ["PostgreSQL", "Redis", "Redis of limits"]
