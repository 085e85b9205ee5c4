"""Both engines die at once, and the Scheduler pauses: nothing is lost, and nothing stays charged."""

import time
from contextlib import ExitStack

import openai
import pytest

from tests.drills.client import ANSWERED, Client
from tests.drills.processes import ENGINE_CORE
from tests.drills.word_lists import word_list
from tests.real_cluster.service import DECODE_PROCESS, PREFILL_PROCESS, Service, wait_for

NUM_STREAMS = 3
NUM_TOKENS = 1200
PAUSE_S = 0.7
"""At least."""
BACK_WITHIN_S = 150.0
"""Two engines start on two cores."""
INTERACTIVE_WAITS_S = 10.0
"""`outage_wait_s` in conf/local.yaml: shorter than an engine's start."""


def test_streams_and_new_requests_outlive_both_engines(service: Service, client: openai.OpenAI, model: str) -> None:
    with ExitStack() as stack:
        streams = [Client(service.port, timeout_s=BACK_WITHIN_S) for _ in range(NUM_STREAMS)]
        for seed, stream in enumerate(streams, 71):
            stack.callback(stream.leave)
            stream.ask(model, word_list(seed, 150), NUM_TOKENS)
        for stream in streams:
            stream.wait_for_frames(5, BACK_WITHIN_S)
        _kill_engines(service)
        wait_for(lambda: not service.is_ready(), BACK_WITHIN_S)
        _require_refusal(client, model)
        answer = client.with_options(timeout=BACK_WITHIN_S).completions.create(model=model, prompt="Once", max_tokens=5)
        assert answer.usage and answer.usage.completion_tokens == 5
        for stream in streams:
            assert stream.wait_for_end(BACK_WITHIN_S)
        assert [stream.outcome for stream in streams] == [ANSWERED] * NUM_STREAMS, [s.seen.error for s in streams]
    wait_for(service.is_idle, 30.0)


def test_short_pause_of_the_scheduler_leaves_nothing_charged(
    service: Service, client: openai.OpenAI, model: str
) -> None:
    (scheduler,) = service.processes("ray::ServeReplica:baton:Scheduler")
    with ExitStack() as stack:
        streams = [Client(service.port, timeout_s=60.0) for _ in range(8)]
        for seed, stream in enumerate(streams, 81):
            stack.callback(stream.leave)
            stream.ask(model, word_list(seed, 60), 60)
        for stream in streams:
            stream.wait_for_frames(2, 60.0)
        paused_at = time.monotonic()
        scheduler.suspend()
        try:
            for stream in streams[:4]:
                stream.leave()
            for stream in streams[4:]:
                assert stream.wait_for_end(30.0)
            wait_for(lambda: time.monotonic() - paused_at > PAUSE_S, 2 * PAUSE_S)
        finally:
            scheduler.resume()
        assert {stream.outcome for stream in streams[4:]} == {ANSWERED}
    wait_for(lambda: service.metric("baton_placed_requests") == 0, 15.0)


def _require_refusal(client: openai.OpenAI, model: str) -> None:
    """No worker lives for as long as the class of a request waits."""
    asked_at = time.monotonic()
    with pytest.raises(openai.InternalServerError) as refused:
        client.completions.create(model=model, prompt="Once", max_tokens=1, extra_body={"service_tier": "priority"})
    assert refused.value.status_code == 503
    assert time.monotonic() - asked_at > INTERACTIVE_WAITS_S / 2
    assert int(refused.value.response.headers["retry-after"]) >= 1


def _kill_engines(service: Service) -> None:
    cores = [
        child
        for name in (PREFILL_PROCESS, DECODE_PROCESS)
        for child in service.process(name).children()
        if ENGINE_CORE in " ".join(child.cmdline())
    ]
    assert len(cores) == 2
    for core in cores:
        core.kill()
