"""Budgets begin with what the ledger says that was spent, on a real PostgreSQL and the Redis of the ingress."""

import time

import pytest

from api.charging.accounting import Accounting
from api.identity.principal import Principal
from api.limits.limits import ScopeKind
from api.state.lifecycle import ChatState
from cluster.config.application import AppConfig
from cluster.config.tenants.limits import Limits
from cluster.errors import QuotaExceeded
from router.session.receipt import Terms
from tests.unit.api.charging.limited_principal import a_limited_principal
from tests.unit.factories import a_request
from tests.unit.usage_rows import TENANT, a_row

PROMPT, ANSWER = 4, 10
OWN = {ScopeKind.KEY: "key_1", ScopeKind.PROJECT: "proj_1", ScopeKind.TENANT: TENANT}
SPENT = {
    # By the scope that its row is of: tokens, and millionths of the currency
    ScopeKind.KEY: (100, 3_000),
    ScopeKind.PROJECT: (200, 7_000),
    ScopeKind.END_USER: (400, 11_000),
    ScopeKind.MODEL: (800, 13_000),
    ScopeKind.TENANT: (1500 + 1600, 34_000 + 17_000),  # of all rows
}


async def begin(accounting: Accounting, who: Principal) -> None:
    charge = accounting.charging.charge(who, "u", lambda _: None, names_maximum=True)
    charge.expect(PROMPT, ANSWER)
    await charge.begin(a_request("r"), Terms(http_request="req_1"), lambda: 0)


@pytest.mark.parametrize("period", ["day", "month"])
@pytest.mark.parametrize("unit", ["tokens", "cost"])
@pytest.mark.parametrize("scope", ScopeKind)
async def test_budget_begins_with_what_the_ledger_says_that_its_scope_has_spent(
    accounting: Accounting, state: ChatState, config: AppConfig, scope: ScopeKind, unit: str, period: str
) -> None:
    """To the token and to the millionth: a request fits whose budget has just enough left, and no other one. Nothing
    has a price here, so that a request needs no room in a budget of cost.
    """
    column = {ScopeKind.KEY: "key_id", ScopeKind.PROJECT: "project_id", ScopeKind.END_USER: "end_user"}
    column[ScopeKind.MODEL] = "model"
    ids = {"key_id": "key_1", "project_id": "proj_1", "end_user": "u", "model": config.model_name}
    others = dict.fromkeys(ids, "other")
    now_ms = time.time_ns() // 1_000_000
    rows = [
        a_row(
            now_ms,
            **others | {column[kind]: ids[column[kind]]},
            prompt_tokens=SPENT[kind][0] - 5,
            generated_tokens=5,
            cost_micros=SPENT[kind][1],
        )
        for kind in column
    ]
    rest = {"generated_tokens": 600, "cost_micros": 17_000}
    rows.append(a_row(now_ms, **others, prompt_tokens=1000, **rest))
    rows.append(a_row(now_ms, **ids, http_request="", prompt_tokens=10**6))  # what Baton asked by itself
    rows.append(a_row(now_ms, **ids, tenant_id="f" * 16, prompt_tokens=10**6))
    rows.append(a_row(now_ms - 32 * 86_400_000, **ids, prompt_tokens=10**6))
    await state.stores.ledger.write([], [], rows)
    enough = SPENT[scope][0] + PROMPT + ANSWER if unit == "tokens" else SPENT[scope][1]
    for budget, is_granted in ((enough - 1, False), (enough, True)):
        limits = Limits(**{f"{unit}_per_{period}": budget})
        who = a_limited_principal(OWN | {ScopeKind.MODEL: config.model_name}, {scope: limits})
        if is_granted:
            await begin(accounting, who)
        else:
            with pytest.raises(QuotaExceeded):
                await begin(accounting, who)
