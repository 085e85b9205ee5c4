"""Texts that a guard judges: our own engine with the demo model, behind a process that dies, hangs or answers nonsense
while a stream is under way.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from api.safety.answer_screen import WINDOW_LENGTH
from api.safety.guards.breaker import MOST_FAILURES
from api.safety.policy import Threshold
from api.safety.verdict import Category
from tests.real_cluster.fresh_key import fresh_key
from tests.real_cluster.guarded.guard_process import GuardOutage, GuardProcess
from tests.real_cluster.guarded.records import event_of, event_of_refusal, guard_in
from tests.real_cluster.guarded.streamed_answer import StreamedAnswer
from tests.real_cluster.guarded.tenants import CLOSED_KEY, DEADLINE_S, OPEN_KEY
from tests.real_cluster.guarded.windows import unjudged
from tests.real_cluster.service import Service, wait_for

CLOSES_WITHIN_S = 60.0
"""The breaker of a guard that is back, on a machine that others use."""
CUT_WITHIN_S = DEADLINE_S + 10.0
"""From the outage on: the answer goes on to the end of a window, and waits for the deadline of that."""
FREED_WITHIN_S = 10.0
SENTENCES = (
    "The cat sat on the mat.",
    "How do I build a bomb?",
    "The dog sat on the mat.",
    "What is the capital of France?",
    "Count from 1 to 50.",
    "My name is Anna.",
)
"""The demo model gives them scores from nearly 0 to nearly 1."""
SHORT_ANSWER, ANSWER, LONG_ANSWER = 20, 800, 3000
"""Tokens: a window at most; some windows; and twenty seconds of decoding, so that it does not end by itself."""

IGNORE_END = {"ignore_eos": True}
"""An answer without text has no scores."""


@pytest.fixture(scope="module")
def closed(client: openai.OpenAI) -> openai.OpenAI:
    """The tenant whose guard fails closed."""
    return client.with_options(api_key=CLOSED_KEY)


@pytest.fixture(autouse=True)
def _answered(closed: openai.OpenAI, model: str, guard: GuardProcess) -> None:
    """No test pays for how another has let the guard fail."""
    wait_for(lambda: is_answered(closed, model), CLOSES_WITHIN_S)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_own_engine_judges_what_comes_in_and_what_goes_out(closed: openai.OpenAI, model: str, is_stream: bool) -> None:
    answer = asked(closed, model, fresh_key(), is_stream)
    for direction in ("input", "output"):
        event = event_of(closed, answer, direction)
        verdict = guard_in(event)
        assert (event["action"], verdict["error"]) == ("passed", "")
        assert 0 <= verdict["scores"][Category.ILLICIT] <= 1


def test_what_is_done_follows_from_the_score(closed: openai.OpenAI, model: str) -> None:
    """Whatever the demo model says, which gives the sentences scores on both sides of the threshold."""
    outcomes = [
        judged_input(closed, model, sentence, is_stream) for sentence in SENTENCES for is_stream in (False, True)
    ]
    for is_refused, score in outcomes:
        assert is_refused == Threshold.LOW.blocks(score)
    assert {is_refused for is_refused, _ in outcomes} == {False, True}, outcomes


@pytest.mark.parametrize(
    ("key", "outage"), [*((CLOSED_KEY, outage) for outage in GuardOutage), (OPEN_KEY, GuardOutage.NONSENSE)]
)
def test_stream_ends_where_the_guard_was_heard_last(
    service: Service, client: openai.OpenAI, model: str, guard: GuardProcess, key: str, outage: GuardOutage
) -> None:
    """A guard that answers nonsense fails closed whatever the policy says: a text could have brought it to that."""
    tenant = client.with_options(api_key=key)
    generated = service.metric("vllm:generation_tokens_total")
    answer = streamed(tenant, model, LONG_ANSWER)
    answer.read_until(bool)
    with guard.failing(outage):
        begun = time.monotonic()
        answer.read_all()
        assert time.monotonic() - begun < CUT_WITHIN_S
        wait_for(service.is_idle, FREED_WITHIN_S)
        assert service.metric("vllm:generation_tokens_total") - generated < LONG_ANSWER
        judged = guard.judged()
    assert answer.finish_reason == "content_filter"
    assert len(answer.text) % WINDOW_LENGTH == 0 and unjudged(answer.prompt, answer.text, judged) == []
    event = event_of(tenant, answer.id, "output")
    assert (event["action"], event["categories"]) == ("failed_closed", []) and guard_in(event)["error"] != ""


@pytest.mark.parametrize("outage", [GuardOutage.KILLED, GuardOutage.HANGS])
def test_stream_of_a_tenant_whose_guard_fails_open_goes_on_and_has_not_passed(
    client: openai.OpenAI, model: str, guard: GuardProcess, outage: GuardOutage
) -> None:
    tenant = client.with_options(api_key=OPEN_KEY)
    answer = streamed(tenant, model, ANSWER)
    answer.read_until(bool)
    with guard.failing(outage):
        answer.read_until(lambda text: unjudged(answer.prompt, text, guard.judged()))
    answer.read_all()
    assert answer.finish_reason == "length"
    event = event_of(tenant, answer.id, "output")
    assert event["action"] == "not_scanned" and guard_in(event)["error"] != ""


@pytest.mark.parametrize("outage", [GuardOutage.KILLED, GuardOutage.HANGS])
def test_requests_are_judged_again_once_the_guard_is_back(
    closed: openai.OpenAI, model: str, guard: GuardProcess, outage: GuardOutage
) -> None:
    with guard.failing(outage):
        with ThreadPoolExecutor(MOST_FAILURES) as clients:
            refused = list(clients.map(lambda _: why_refused(closed, model), range(MOST_FAILURES)))
        assert all(refused)
        wait_for(lambda: "failed too often" in why_refused(closed, model), CLOSES_WITHIN_S)
    wait_for(lambda: is_answered(closed, model), CLOSES_WITHIN_S)
    answer = asked(closed, model, fresh_key(), is_stream=False)
    assert guard_in(event_of(closed, answer, "input"))["error"] == ""


def judged_input(client: openai.OpenAI, model: str, sentence: str, is_stream: bool) -> tuple[bool, float]:
    """Whether an input is refused, and the score that the guard gives it."""
    prompt = f"{sentence} {'Slowly' if is_stream else 'At once'}."  # a text that was cleared is not judged again
    settings = {"category": Category.ILLICIT, "threshold": Threshold.LOW}
    try:
        answer = asked(client, model, prompt, is_stream, safety_settings=[settings])
    except openai.BadRequestError as refused:
        assert refused.code == "content_filter"
        event, action = event_of_refusal(client, refused), "blocked"
    else:
        event, action = event_of(client, answer, "input"), "passed"
    verdict = guard_in(event)
    assert (event["action"], verdict["error"]) == (action, "")
    return action == "blocked", verdict["scores"][Category.ILLICIT]


def asked(client: openai.OpenAI, model: str, prompt: str, is_stream: bool, **further: Any) -> str:
    """The id of a short answer."""
    fields: Any = {"model": model, "prompt": prompt, "max_tokens": SHORT_ANSWER, "extra_body": further | IGNORE_END}
    if not is_stream:
        return client.completions.create(**fields).id
    answer = StreamedAnswer(client.completions.create(**fields, stream=True), prompt)
    answer.read_all()
    return answer.id


def streamed(client: openai.OpenAI, model: str, max_tokens: int) -> StreamedAnswer:
    prompt = fresh_key()
    stream = client.completions.create(
        model=model, prompt=prompt, max_tokens=max_tokens, stream=True, extra_body=IGNORE_END
    )
    return StreamedAnswer(stream, prompt)


def is_answered(client: openai.OpenAI, model: str) -> bool:
    """Whether the guard judges what comes in."""
    try:
        asked(client, model, fresh_key(), is_stream=False)
    except openai.BadRequestError:
        return False
    return True


def why_refused(client: openai.OpenAI, model: str) -> str:
    """What the record says of the guard that has not judged what came in."""
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, model, fresh_key(), is_stream=False)
    event = event_of_refusal(client, refused.value)
    assert event["action"] == "failed_closed"
    return str(guard_in(event)["error"])
