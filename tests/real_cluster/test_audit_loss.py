"""PostgreSQL that is away while safety events are due: none is lost, and nothing is answered that must be on record."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest

from api.identity.tenants import tenant_of_key
from api.safety.audit.decision_record import RECORD_PATIENCE_S
from tests.real_cluster.fresh_key import fresh_key
from tests.real_cluster.guarded.records import event_of
from tests.real_cluster.guarded.tenants import AUDITED_KEY, OPEN_KEY
from tests.real_cluster.postgres_loss import postgres_away
from tests.real_cluster.service import Service, wait_for

REFUSED_WITHIN_S = RECORD_PATIENCE_S + 10.0
"""On a machine that others use."""
ANSWERED_WITHIN_S = 60.0
VERIFIED_WITHIN_S = 120.0


@pytest.fixture(scope="module")
def audited(client: openai.OpenAI) -> openai.OpenAI:
    """The tenant that demands the record."""
    return client.with_options(api_key=AUDITED_KEY)


@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "is killed"])
def test_events_wait_for_a_database_that_is_away(
    service: Service, client: openai.OpenAI, model: str, fault: signal.Signals
) -> None:
    tenant = client.with_options(api_key=OPEN_KEY)
    with postgres_away(service, signal.SIGSTOP):
        answer = tenant.completions.create(model=model, prompt=fresh_key(), max_tokens=20)
        wait_for(lambda: service.metric("baton_safety_events_waiting") >= 2, timeout_s=10)
        if fault is signal.SIGKILL:
            for process in service.postgres():
                process.kill()
    service.wait_until_whole()
    for direction in ("input", "output"):
        assert event_of(tenant, answer.id, direction)["direction"] == direction
    assert tenant_of_key(OPEN_KEY) in sound_logs(service)


def test_request_that_must_be_on_record_is_refused_until_it_can_be(
    service: Service, audited: openai.OpenAI, model: str
) -> None:
    stream = audited.completions.create(
        model=model, prompt=fresh_key(), max_tokens=300, stream=True, extra_body={"ignore_eos": True}
    )
    chunks = [next(stream)]
    with postgres_away(service, signal.SIGSTOP):
        begun = time.monotonic()
        with pytest.raises(openai.InternalServerError) as refused:
            audited.completions.create(model=model, prompt=fresh_key(), max_tokens=1)
        assert time.monotonic() - begun < REFUSED_WITHIN_S
        with pytest.raises(openai.APIError) as broken_off:
            chunks.extend(stream)
    assert (refused.value.status_code, refused.value.code) == (503, "state_unavailable")
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert broken_off.value.code == "state_unavailable"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == []
    wait_for(lambda: is_answered(audited, model), ANSWERED_WITHIN_S)
    service.wait_until_whole()
    assert tenant_of_key(AUDITED_KEY) in sound_logs(service)


def is_answered(client: openai.OpenAI, model: str) -> bool:
    try:
        client.completions.create(model=model, prompt=fresh_key(), max_tokens=1)
    except openai.InternalServerError:
        return False
    return True


def sound_logs(service: Service) -> list[str]:
    """The tenants whose logs are sound. Raises CalledProcessError if one is not."""
    baton = str(Path(sys.executable).with_name("baton"))
    told = subprocess.run(
        [baton, "audit", "verify", "--conf", str(service.config_file)],
        capture_output=True,
        text=True,
        check=True,
        timeout=VERIFIED_WITHIN_S,
    ).stdout
    return [line.partition(":")[0] for line in told.splitlines() if line.endswith(", ok")]
