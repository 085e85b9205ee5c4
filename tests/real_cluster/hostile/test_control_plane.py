"""Serve's controller dies or hangs: what runs goes on, nothing that is well is replaced, and what dies later is."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import openai
import psutil
import pytest

from tests.drills.client import ANSWERED, Client
from tests.drills.word_lists import word_list
from tests.real_cluster.service import (
    CONTROLLER_PROCESS,
    DECODE_PROCESS,
    INGRESS_PROCESS,
    PREFILL_PROCESS,
    SCHEDULER_PROCESS,
    Service,
    wait_for,
)

REPLICAS = (INGRESS_PROCESS, SCHEDULER_PROCESS, PREFILL_PROCESS, DECODE_PROCESS)
RECOVERED_WITHIN_S = 60.0
NUM_TOKENS = 1500
ANSWERED_WITHIN_S = 60.0
HUNG_S = 5.0
"""What Serve's controller is stopped for."""
SILENCE_S = 2.0
"""Between two tokens of a stream, on two cores that also start a controller."""


def test_killed_controller_costs_no_request_and_no_replica(service: Service, model: str) -> None:
    before = _processes(service)
    with _stream(service, model, 31) as stream:
        for _ in range(2):
            _kill_controller(service)
        wait_for(lambda: _has_recovered(service), RECOVERED_WITHIN_S, interval_s=0.5)
        assert _processes(service) == before
        service.process(DECODE_PROCESS).kill()
        assert stream.wait_for_end(ANSWERED_WITHIN_S)
        assert stream.outcome == ANSWERED
    service.wait_until_whole()
    after = _processes(service)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {DECODE_PROCESS}


@pytest.mark.full_matrix
def test_controller_killed_while_an_engine_starts_replaces_nobody_else(service: Service, model: str) -> None:
    """The worker that starts may be replaced: Serve keeps none that its controller had not set up before it died."""
    before = _processes(service)
    with _stream(service, model, 33) as stream:
        killed = service.process(DECODE_PROCESS)
        killed.kill()
        wait_for(lambda: any(p != killed for p in service.processes(DECODE_PROCESS)), RECOVERED_WITHIN_S)
        _kill_controller(service)
        assert stream.wait_for_end(ANSWERED_WITHIN_S)
        assert stream.outcome == ANSWERED
    service.wait_until_whole()
    after = _processes(service)
    assert {name for name in after if after[name] != before[name]} == {DECODE_PROCESS}


def test_hung_controller_holds_up_neither_streams_nor_metrics(
    service: Service, client: openai.OpenAI, model: str
) -> None:
    service.process(INGRESS_PROCESS).kill()  # its successor has not been asked for metrics yet
    service.wait_until_whole()
    (controller,) = service.processes(CONTROLLER_PROCESS)
    with _stream(service, model, 32) as stream:
        controller.suspend()
        try:
            hung_at = time.monotonic()
            assert service.metric("baton_workers") == 2
            assert client.completions.create(model=model, prompt="Once", max_tokens=5).usage
            assert time.monotonic() - hung_at < HUNG_S
            with suppress(TimeoutError):
                wait_for(lambda: stream.has_ended, HUNG_S)
        finally:
            controller.resume()
        assert stream.seen.longest_silence_s(hung_at) < SILENCE_S
        assert stream.wait_for_end(ANSWERED_WITHIN_S)
        assert stream.outcome == ANSWERED


@pytest.mark.full_matrix
def test_killed_dashboard_costs_nothing(service: Service, model: str) -> None:
    """The last test of this file: nobody replaces a dashboard, and others here ask it."""
    before = _processes(service)
    with _stream(service, model, 34) as stream:
        (dashboard,) = service.ray_processes("dashboard.py")
        for process in [dashboard, *dashboard.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        service.process(DECODE_PROCESS).kill()
        assert stream.wait_for_end(ANSWERED_WITHIN_S)
        assert stream.outcome == ANSWERED
    service.wait_until_whole()
    after = _processes(service)
    assert {name for name in after if after[name] != before[name]} == {DECODE_PROCESS}


@contextmanager
def _stream(service: Service, model: str, seed: int) -> Iterator[Client]:
    """A greedy stream whose right text is known, in its middle."""
    stream = Client(service.port, timeout_s=ANSWERED_WITHIN_S)
    stream.ask(model, word_list(seed, 150), NUM_TOKENS)
    try:
        stream.wait_for_frames(5, ANSWERED_WITHIN_S)
        yield stream
    finally:
        stream.leave()


def _processes(service: Service) -> dict[str, psutil.Process]:
    """Equal only to those with the same process ids and the same start."""
    return {name: service.process(name) for name in REPLICAS}


def _kill_controller(service: Service) -> None:
    (killed,) = service.processes(CONTROLLER_PROCESS)
    killed.kill()
    wait_for(lambda: [p for p in service.processes(CONTROLLER_PROCESS) if p != killed], RECOVERED_WITHIN_S)


def _has_recovered(service: Service) -> bool:
    with suppress(httpx.HTTPError):
        replicas = service.serve_says()
        return len(replicas) == len(REPLICAS) and set(replicas.values()) == {"RUNNING"}
    return False
