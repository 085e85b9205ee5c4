"""Requests and answers that the guard has to judge: it is asked in doubt, holds back, and fails as the policy says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.safety.answer_screen import WINDOW_LENGTH
from api.safety.audit.event import Direction, SafetyAction
from api.safety.screening import CALLS_AT_ONCE
from tests.component.api.frontend.test_screening import CUT, ask, shown
from tests.component.api.safety.guards.fake_guard import UNSAFE_WORD, FakeGuard, GuardFault
from tests.component.app_with_fakes import FakeCluster, a_client, an_app
from tests.component.fake_engines import FakeEngines
from tests.component.safety_folder import safety_in

LONG = "word " * 120
POLICY = """
default_threshold = "block_medium_and_above"
[stages.guard]
runs = "{runs}"
fails_closed = {closed}
deadline_s = 0.5
"""

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
]


class Guarded:
    def __init__(self, client: httpx.AsyncClient, engines: FakeEngines, guard: FakeGuard) -> None:
        self.client = client
        self.engines = engines
        self.guard = guard

    async def ask(self, text: str = "Hello", **form: Any) -> httpx.Response:
        return await ask(self.client, form, messages=[{"role": "user", "content": text}])

    def actions(self, direction: Direction) -> list[SafetyAction]:
        return [event.action for event in self.engines.events if event.direction is direction]


@asynccontextmanager
async def guarded(
    folder: Path, *, runs: str = "in_doubt", closed: bool = True, more: str = ""
) -> AsyncIterator[Guarded]:
    engines = FakeEngines()
    async with FakeGuard("llama_guard") as guard:
        config = {"url": guard.url, "model": "guard", "dialect": "llama_guard"}
        policy = more + POLICY.format(runs=runs, closed=str(closed).lower())
        frontend = await engines.frontend(512, safety_in(folder, policy, guard=config))
        try:
            async with a_client(an_app(frontend, FakeCluster())) as client:
                yield Guarded(client, engines, guard)
        finally:
            await frontend.close()


async def test_guard_is_asked_in_doubt_alone(tmp_path: Path) -> None:
    async with guarded(tmp_path) as service:
        assert shown(await service.ask()) == {0: ("Paris is nice.", "stop")}
        assert service.guard.num_calls == 0
        service.engines.says(f"A knife, {LONG}")
        assert shown(await service.ask())[0][1] == "stop"
        assert service.guard.num_calls == 1


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("text", [f"a knife and a {UNSAFE_WORD}", f"{LONG}, a knife and a {UNSAFE_WORD}"])
async def test_input_that_the_guard_blocks_is_a_400(tmp_path: Path, text: str, is_streamed: bool) -> None:
    async with guarded(tmp_path) as service:
        response = await service.ask(text, stream=is_streamed)
        assert (response.status_code, response.json()["error"]["code"]) == (400, CUT)
        assert response.headers["x-safety-event-id"] == service.engines.events[0].id
        assert service.actions(Direction.INPUT) == [SafetyAction.BLOCKED]
        assert "Paris" not in response.text


async def test_text_that_the_guard_has_blocked_is_kept(tmp_path: Path) -> None:
    """And not the one that was judged last."""
    async with guarded(tmp_path, more="keeps_text = true\n", runs="always") as service:
        blocked = f"A {UNSAFE_WORD}."
        texts = ["Hello.", blocked, "Goodbye."]
        await ask(service.client, {}, messages=[{"role": "user", "content": text} for text in texts])
        assert service.engines.events[0].evidence == blocked.encode()


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("runs", ["in_doubt", "always"])
async def test_answer_is_cut_where_the_window_or_the_doubt_begins(tmp_path: Path, runs: str, is_streamed: bool) -> None:
    async with guarded(tmp_path, runs=runs) as service:
        whole = f"{LONG}A knife and a {UNSAFE_WORD}, {LONG}"
        service.engines.says(whole)
        text, reason = shown(await service.ask(stream=is_streamed))[0]
        assert reason == CUT
        num_windows = len(LONG) // WINDOW_LENGTH
        assert text == (whole[: num_windows * WINDOW_LENGTH] if runs == "always" else f"{LONG}A")
        assert service.actions(Direction.OUTPUT) == [SafetyAction.CUT]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("fault", [GuardFault.HANG, GuardFault.FAILS, GuardFault.CLOSED_AT_ONCE])
@pytest.mark.parametrize("closed", [False, True])
async def test_guard_that_is_away_fails_as_the_policy_says(
    tmp_path: Path, fault: GuardFault, is_streamed: bool, closed: bool
) -> None:
    async with guarded(tmp_path, closed=closed) as service:
        service.guard.fault = fault
        service.engines.says(f"{LONG}A knife.")
        text, reason = shown(await service.ask(stream=is_streamed))[0]
        done = SafetyAction.FAILED_CLOSED if closed else SafetyAction.NOT_SCANNED
        assert service.actions(Direction.OUTPUT) == [done]
        assert (reason, "knife" in text) == ((CUT, False) if closed else ("stop", True))
        refused = await service.ask("a knife", stream=is_streamed)
        assert service.actions(Direction.INPUT)[-1] is done
        assert refused.status_code == (400 if closed else 200)


async def test_nonsense_fails_closed_whatever_the_policy_says(tmp_path: Path) -> None:
    async with guarded(tmp_path, closed=False) as service:
        service.guard.fault = GuardFault.NONSENSE
        assert (await service.ask("a knife")).status_code == 400
        assert service.actions(Direction.INPUT) == [SafetyAction.FAILED_CLOSED]


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
async def test_guard_judges_every_message(tmp_path: Path, role: str) -> None:
    async with guarded(tmp_path) as service:
        messages = [{"role": role, "content": f"a knife and a {UNSAFE_WORD}"}, {"role": "user", "content": "Hi"}]
        assert (await ask(service.client, {}, messages=messages)).status_code == 400


async def test_strict_policy_lets_no_engine_work_before_the_verdict(tmp_path: Path) -> None:
    text = f"a knife and a {UNSAFE_WORD}"
    for more, num_started in (("is_strict = true\n", 0), ("", 1)):
        async with guarded(tmp_path, more=more) as service:
            assert (await service.ask(text, stream=True)).status_code == 400
            assert len(service.engines.requests) == num_started


async def test_long_chat_is_judged_a_few_messages_at_a_time(tmp_path: Path) -> None:
    async with guarded(tmp_path, runs="always") as service:
        messages = [{"role": "user", "content": f"m{number}"} for number in range(30)]
        assert (await ask(service.client, {}, messages=messages)).status_code == 200
        assert service.guard.most_open <= CALLS_AT_ONCE + 1  # the one of the answer


@pytest.mark.parametrize("fault", [None, GuardFault.HANG])
async def test_blocked_input_is_one_event_and_nothing_passes(tmp_path: Path, fault: GuardFault | None) -> None:
    async with guarded(tmp_path, more="audits_all = true\n") as service:
        service.guard.fault = fault
        assert (await service.ask(f"a knife and a {UNSAFE_WORD}", stream=True)).status_code == 400
        assert service.actions(Direction.OUTPUT) == []
        assert len(service.actions(Direction.INPUT)) == 1


async def test_client_that_leaves_before_the_verdict_is_on_record(tmp_path: Path) -> None:
    async with guarded(tmp_path, more="audits_all = true\n") as service:
        service.guard.fault = GuardFault.HANG
        asking = asyncio.create_task(service.ask(f"a knife and a {UNSAFE_WORD}", stream=True))
        await service.guard.called(1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(10):
            await service.engines.has_event.wait()
        assert [event.action for event in service.engines.events] == [SafetyAction.NOT_SCANNED]


async def test_policy_with_the_guard_alone_answers_what_it_has_not_to_ask_about(tmp_path: Path) -> None:
    never = "".join(f'stages.{stage}.runs = "never"\n' for stage in ("lists", "personal_data", "classifier"))
    async with guarded(tmp_path, runs="always", more=f"audits_all = true\n{never}") as service:
        for text in ("Hello", "Hello", ""):
            assert (await service.ask(text)).status_code == 200
        assert set(service.actions(Direction.INPUT)) == {SafetyAction.PASSED}


async def test_live_answers_leave_before_the_verdict_and_end_with_it(tmp_path: Path) -> None:
    async with guarded(tmp_path, more="is_live = true\n") as service:
        service.engines.says(f"A knife and a {UNSAFE_WORD}, {LONG}{LONG}")
        text, reason = shown(await service.ask(stream=True))[0]
        assert reason == CUT
        assert text.startswith("A knife")


async def test_policy_that_demands_the_record_refuses_without_one(tmp_path: Path) -> None:
    async with guarded(tmp_path, more="needs_audit = true\n") as service:
        service.engines.audit_is_full = True
        response = await service.ask(stream=True)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert service.engines.requests == []
