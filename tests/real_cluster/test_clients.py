"""Clients of others, unmodified, against real engines: those that `make test` installs (tests/clients/)."""

import pytest

from tests.clients.cancelled_answers import CancelledAnswers
from tests.clients.catalogue import QUICK, client_named
from tests.clients.running import Endpoint, outcomes, table
from tests.real_cluster.service import Service


@pytest.mark.parametrize("name", QUICK)
def test_all_flows_of_a_client_pass(service: Service, model: str, name: str) -> None:
    client = client_named(name)
    answers = CancelledAnswers(service)
    results = outcomes(client, Endpoint(service.url, "unused", model))
    assert [outcome for outcome in results if not outcome.ok] == [], table(client, results)
    assert answers.fault(results) is None
