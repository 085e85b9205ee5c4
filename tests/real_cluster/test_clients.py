"""Clients of others, unmodified, against real engines: those that `make test` installs (tests/clients/)."""

import pytest

from tests.clients.catalogue import QUICK, client_named
from tests.clients.running import Endpoint, outcomes, table
from tests.real_cluster.service import Service, wait_for

FREED_WITHIN_S = 10.0


@pytest.mark.parametrize("name", QUICK)
def test_all_flows_of_a_client_pass(service: Service, model: str, name: str) -> None:
    client = client_named(name)
    aborted = service.metric("baton_requests_total", outcome="aborted")
    results = outcomes(client, Endpoint(service.url, "unused", model))
    assert [outcome for outcome in results if not outcome.ok] == [], table(client, results)
    cancelled = [outcome for outcome in results if "cancel in mid-stream" in outcome.flow]
    wait_for(service.is_idle, FREED_WITHIN_S)
    assert service.metric("baton_requests_total", outcome="aborted") == aborted + len(cancelled)
