from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.metering.tenant_counts import TenantCounts
from cluster.messages.ids import Outcome
from cluster.metrics.page import scrape
from cluster.metrics.tenants import TENANT_GOODPUT, TENANT_REQUESTS, TENANT_TOKENS
from tests.unit.factories import a_receipt


@pytest.fixture(autouse=True)
def nothing_counted() -> Iterator[None]:
    yield
    for metric in (TENANT_REQUESTS, TENANT_TOKENS, TENANT_GOODPUT):
        metric.clear()


def counted(name: str) -> dict[tuple[str, ...], float]:
    return {tuple(labels.values()): value for labels, value in scrape("ingress", "a").values(name)}


def test_requests_and_tokens_are_counted_by_tenant() -> None:
    counts = TenantCounts(10)
    counts.closed("a", a_receipt(num_prompt_tokens=7, num_output_tokens=2))
    counts.closed("a", a_receipt(num_prompt_tokens=1, num_output_tokens=0, outcome=Outcome.FAILED))
    counts.closed("", a_receipt())
    assert counted("baton_tenant_requests_total") == {("a", "finished"): 1, ("a", "failed"): 1, ("none", "finished"): 1}
    tokens = counted("baton_tenant_tokens_total")
    assert (tokens["a", "prompt"], tokens["a", "output"]) == (8, 2)
    assert counted("baton_tenant_goodput_requests_total")["a", "failed"] == 1


@given(st.lists(st.text(min_size=1), max_size=60), st.integers(1, 5))
def test_however_many_tenants_come_few_have_series_and_no_request_is_lost(tenants: list[str], most: int) -> None:
    TENANT_REQUESTS.clear()
    counts = TenantCounts(most)
    for tenant in tenants:
        counts.closed(tenant, a_receipt())
    samples = [one for family in TENANT_REQUESTS.collect() for one in family.samples if one.name.endswith("_total")]
    assert len(samples) <= most + 1
    assert sum(one.value for one in samples) == len(tenants)
