"""A tenant whose requests have a best SLO class is served in it, and told so."""

import pytest

from api.identity.access import Access
from api.identity.principal import Principal
from api.identity.rights import ALL_RIGHTS
from api.identity.settings import TenantSettings
from api.state.lifecycle import ChatState
from cluster.messages.ids import SloClass
from tests.component.answering import Model
from tests.component.app_with_fakes import CHAT, FakeFrontend, a_client, an_app
from tests.component.app_with_postgres import clients_of

TIGHT = {"authorization": "Bearer somebody", "x-baton-ttft-slo-ms": "1", "x-baton-tpot-slo-ms": "1"}


def access_with(best: SloClass) -> Access:
    principal = Principal(
        tenant="t", project="p", key="key_1", rights=ALL_RIGHTS, settings=TenantSettings(best_class=best)
    )

    async def identify(credential: str) -> Principal:
        return principal

    return Access(identify, is_required=True)


@pytest.mark.parametrize(
    ("best", "asked", "served", "tier"),
    [
        (SloClass.INTERACTIVE, "priority", SloClass.INTERACTIVE, "priority"),
        (SloClass.STANDARD, "priority", SloClass.STANDARD, "default"),
        (SloClass.STANDARD, "fast", SloClass.STANDARD, "default"),
        (SloClass.STANDARD, None, SloClass.STANDARD, "default"),
        (SloClass.STANDARD, "flex", SloClass.BATCH, "flex"),
        (SloClass.BATCH, "priority", SloClass.BATCH, "flex"),
        (SloClass.BATCH, None, SloClass.BATCH, "flex"),
    ],
)
async def test_request_for_a_better_class_is_served_in_the_best_one(
    best: SloClass, asked: str | None, served: SloClass, tier: str
) -> None:
    frontend = FakeFrontend({"id": "1", "service_tier": None})
    body = {"model": "baton-demo", "service_tier": asked}
    async with a_client(an_app(frontend, access=access_with(best))) as client:
        answer = await client.post(CHAT, json=body, headers=TIGHT)
    assert answer.json() == {"id": "1", "service_tier": tier}
    assert answer.headers["x-baton-slo"].startswith(f"class={served}")
    (terms,) = frontend.terms
    tight = 0.001 if best is SloClass.INTERACTIVE else None
    assert (terms.slo_class, terms.ttft_s, terms.tpot_s) == (served, tight, tight)


async def test_objective_that_is_no_number_is_refused_all_the_same() -> None:
    async with a_client(an_app(FakeFrontend(), access=access_with(SloClass.BATCH))) as client:
        answer = await client.post(CHAT, json={"model": "baton-demo"}, headers=TIGHT | {"x-baton-ttft-slo-ms": "soon"})
    assert answer.status_code == 400


async def test_response_says_which_tier_it_got(state: ChatState) -> None:
    model = Model()
    async with clients_of(state, model, access=access_with(SloClass.STANDARD)) as clients:
        made = await clients("somebody").responses.create(model="m", input="Hello", service_tier="priority")
        assert made.service_tier == "default"
        assert (await clients("somebody").responses.retrieve(made.id)).service_tier == "default"
    assert model.terms[0].slo_class is SloClass.STANDARD
