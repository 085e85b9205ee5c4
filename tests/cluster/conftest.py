from collections.abc import Iterator

import openai
import pytest

from tests.cluster.service import CHANGES, Service
from tests.conformance.watch import watched


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all cluster tests. Stopping it is a test too: nothing may be left running."""
    running = Service(tmp_path_factory.mktemp("service"), CHANGES)
    try:
        running.wait_until_ready()
        yield running
    finally:
        left = running.stop()
    assert not left, f"still running after Ctrl-C: {left}"


@pytest.fixture(scope="package")
def client(service: Service) -> Iterator[openai.OpenAI]:
    http = watched(openai.DefaultHttpxClient())
    with openai.OpenAI(
        base_url=f"{service.url}/v1", api_key="unused", max_retries=0, timeout=60, http_client=http
    ) as client:
        yield client


@pytest.fixture(scope="package")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id
