from collections.abc import Generator, Iterator

import openai
import pytest

from bench.fronts.free_ports import free_port
from cluster.cli.serve.start_log import LOG_FILE
from cluster.repository import REPO_ROOT
from tests.conformance.watch import watched
from tests.real_cluster.guarded.guard_process import GuardProcess
from tests.real_cluster.guarded.tenants import screened_by
from tests.real_cluster.service import CHANGES, Service

LOG_LINES_SHOWN = 40


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a service logged last is shown with the failure of a test of it."""
    report = yield
    log = REPO_ROOT / LOG_FILE
    if report.failed and "service" in getattr(item, "fixturenames", ()) and log.exists():
        report.sections.append(("the service's log", "\n".join(log.read_text().splitlines()[-LOG_LINES_SHOWN:])))
    return report


@pytest.fixture(scope="package")
def guard_port() -> int:
    """Where the guard of the service listens, once a test has started it."""
    return free_port()


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory, guard_port: int) -> Iterator[Service]:
    """One service for all cluster tests. Stopping it is a test too: nothing may be left running."""
    safety = screened_by(f"http://{Service.host}:{guard_port}/v1", tmp_path_factory.mktemp("screened") / "safety")
    running = Service(tmp_path_factory.mktemp("service"), CHANGES | {"safety": safety})
    try:
        running.wait_until_ready()
        yield running
    finally:
        left = running.stop()
    assert not left, f"still running after Ctrl-C: {left}"


@pytest.fixture(scope="package")
def guard(service: Service, guard_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardProcess]:
    """The guard of the tenants that have one (guarded/tenants.py)."""
    guard = GuardProcess(guard_port, service.url, tmp_path_factory.mktemp("guard"))
    yield guard
    guard.stop()


@pytest.fixture(autouse=True)
def _whole(request: pytest.FixtureRequest) -> None:
    """No test pays for what another has killed."""
    if "service" in request.fixturenames:
        request.getfixturevalue("service").wait_until_whole()


@pytest.fixture(scope="package")
def client(service: Service) -> Iterator[openai.OpenAI]:
    http = watched(openai.DefaultHttpxClient())
    with openai.OpenAI(
        base_url=f"{service.url}/v1", api_key="unused", max_retries=0, timeout=60, http_client=http
    ) as client:
        yield client


@pytest.fixture(scope="package")
def strict(service: Service) -> Iterator[openai.OpenAI]:
    """Finds fault with every body that is not of its type."""
    http = watched(openai.DefaultHttpxClient())
    with openai.OpenAI(
        base_url=f"{service.url}/v1",
        api_key="unused",
        max_retries=0,
        timeout=60,
        http_client=http,
        _strict_response_validation=True,
    ) as client:
        yield client


@pytest.fixture(scope="package")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id
