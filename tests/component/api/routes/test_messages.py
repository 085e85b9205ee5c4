"""Rights, limits, charges and screening hold for messages as for chat completions, and every error has Anthropic's
shape, whoever refuses the request.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import pytest
from anthropic import AsyncAnthropic

from api.identity.access import Access
from api.identity.keys import invalid_key
from api.identity.principal import Principal
from api.identity.rights import ALL_RIGHTS, Right
from cluster.config.tenants.limits import Limits
from cluster.errors import QuotaExceeded, RateLimited
from cluster.messages.ids import Path as Route
from cluster.messages.ids import SloClass
from tests.component.anthropic_client import anthropic_client
from tests.component.app_with_fakes import FakeFrontend, a_client, an_app
from tests.component.charged import ChargedBooks
from tests.component.fake_engines import FakeEngines
from tests.component.safety_folder import safety_in
from tests.unit.fake_ports import loop_rounds

pytestmark = pytest.mark.filterwarnings(
    "ignore:max_tokens is deprecated:DeprecationWarning"
)  # vLLM reads its own field

URL = "/v1/messages"
HELLO: dict[str, Any] = {
    "model": "baton-demo",
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "Where is Paris?"}],
}
SOMEBODY = Principal(tenant="0123456789abcdef", project="proj_1", key="key_1", rights=ALL_RIGHTS)


def known(**principal: Any) -> Access:
    """The access of a service on which only the key `sk-alice` is known, whose owner has these changes."""

    async def identify(credential: str) -> Principal:
        if credential != "sk-alice":
            raise invalid_key("nobody has this key")
        return msgspec.structs.replace(SOMEBODY, **principal)

    return Access(identify, is_required=True)


def an_answer(finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    """Of the frontend, to a chat completion."""
    said = {"role": "assistant", "content": None if message else "Hi"} | message
    choices = [{"index": 0, "message": said, "finish_reason": finish_reason}]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "1", "model": "baton-demo", "created": 1, "choices": choices, "usage": usage}


def error_of(refused: anthropic.APIStatusError) -> dict[str, Any]:
    body: Any = refused.body
    assert body["type"] == "error" and body["request_id"] == refused.request_id
    error: dict[str, Any] = body["error"]
    return error


class Served:
    def __init__(self, client: AsyncAnthropic, engines: FakeEngines, books: ChargedBooks) -> None:
        self.client = client
        self.engines = engines
        self.books = books


@asynccontextmanager
async def served(safety: dict[str, Any] | None = None) -> AsyncIterator[Served]:
    engines = FakeEngines()
    limits = Limits(requests_per_minute=60, concurrent_requests=9, tokens_per_minute=10**6, cost_per_month=0)
    books = ChargedBooks(limits)
    frontend = await engines.frontend(512, safety)
    try:
        app = an_app(frontend, access=known(), charging=books.charging)
        async with anthropic_client(app) as client:
            yield Served(client, engines, books)
    finally:
        await frontend.close()


async def test_usage_is_in_the_ledger_and_limits_refuse() -> None:
    async with served() as service:
        told = (await service.client.messages.create(**HELLO, metadata={"user_id": "u1"})).usage
        async with service.client.messages.stream(**HELLO) as stream:
            streamed = (await stream.get_final_message()).usage
        await loop_rounds(9)
        rows = service.books.recorder.rows
        for row, usage in zip(rows, (told, streamed), strict=True):
            assert row.prompt_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
            assert row.generated_tokens == usage.output_tokens
        assert (rows[0].end_user, rows[1].end_user) == ("u1", "")

        service.books.reservations.error = RateLimited("no room", "tokens", 2.0, {"x-ratelimit-remaining-tokens": "0"})
        for is_streamed in (False, True):
            with pytest.raises(anthropic.RateLimitError) as limited:
                await service.client.messages.create(**HELLO, stream=is_streamed)
            headers = limited.value.response.headers
            assert (headers["retry-after"], headers["x-ratelimit-remaining-tokens"]) == ("2", "0")
            assert error_of(limited.value)["type"] == "rate_limit_error"
        service.books.reservations.error = QuotaExceeded("the budget is spent")
        with pytest.raises(anthropic.APIStatusError) as spent:
            await service.client.messages.create(**HELLO)
        assert (spent.value.status_code, error_of(spent.value)["type"]) == (402, "billing_error")
        assert len(service.engines.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_screening_blocks_inputs_and_cuts_answers(tmp_path: Path, stream: bool) -> None:
    async with served(safety_in(tmp_path)) as service:
        blocked = HELLO | {"messages": [{"role": "user", "content": [{"type": "text", "text": "make glue soup"}]}]}
        with pytest.raises(anthropic.BadRequestError) as refused:
            await service.client.messages.create(**blocked, stream=stream)
        assert error_of(refused.value)["details"] == {"error_code": "content_filter"}
        assert refused.value.response.headers["x-safety-event-id"] == service.engines.events[0].id
        assert not service.engines.requests

        service.engines.says("Paris is nice, and a pipe bomb is not.")
        if stream:
            async with service.client.messages.stream(**HELLO) as events:
                message: Any = await events.get_final_message()
        else:
            message = await service.client.messages.create(**HELLO)
        assert message.stop_reason == "refusal"
        assert "bomb" not in json.dumps(message.to_dict())


@pytest.mark.parametrize("url", [URL, f"{URL}/count_tokens"])
async def test_errors_of_the_edge_have_anthropic_s_shape(url: str) -> None:
    """The conformance of each body is checked as it passes."""
    async with a_client(an_app(FakeFrontend(), access=known(), allowed_hosts=["baton"], max_body_bytes=4096)) as http:
        key = {"x-api-key": "sk-alice"}

        async def refused(status: int, method: str = "POST", path: str = url, **options: Any) -> None:
            answer = await http.request(method, path, **options)
            assert answer.status_code == status, answer.text
            assert answer.headers["request-id"] == answer.headers["x-request-id"] == answer.json()["request_id"]

        await refused(401, json=HELLO)
        await refused(401, json=HELLO, headers={"x-api-key": "sk-bob"})
        await refused(401, json=HELLO, headers=key | {"authorization": "Bearer sk-alice"})
        await refused(421, json=HELLO, headers=key | {"host": "evil.example"})
        await refused(403, json=HELLO, headers=key | {"origin": "http://evil.example"})
        await refused(413, json=HELLO | {"system": "x" * 5000}, headers=key)
        await refused(415, content=b"{}", headers=key | {"content-type": "text/plain"})
        await refused(400, content=b"{", headers=key)
        await refused(400, content=b"[" * 3000, headers=key)
        await refused(400, json=[], headers=key)
        await refused(405, "GET", headers=key)
        await refused(404, "POST", f"{url}/batches", json=HELLO, headers=key)


async def test_full_replica_is_overloaded() -> None:
    app = an_app(FakeFrontend(), max_ongoing_requests=1)
    held: Any = app.state.services.capacity.acquire()
    async with anthropic_client(app) as client:
        with pytest.raises(anthropic.OverloadedError) as refused:
            await client.messages.create(**HELLO)
    held.release()
    assert refused.value.status_code == 529 and refused.value.response.headers["retry-after"] == "1"


@pytest.mark.parametrize("header", [{"x-api-key": "sk-alice"}, {"authorization": "Bearer sk-alice"}])
@pytest.mark.parametrize("path", [URL, "/v1/chat/completions"])
async def test_key_is_read_from_either_header(header: dict[str, str], path: str) -> None:
    async with a_client(an_app(FakeFrontend(an_answer()), access=known())) as http:
        assert (await http.post(path, json=HELLO, headers=header)).status_code == 200


@pytest.mark.parametrize(
    "arguments",
    [
        '{"city": "Par',
        "[]",
        "",
        "[" * 100_000,
        '{"x": "\\ud800"}',
        '{"x": ' + "[" * 300 + "]" * 300 + "}",
        '{"x": NaN}',
    ],
)
async def test_call_that_is_cut_within_its_arguments_or_cannot_be_told_has_none(arguments: str) -> None:
    function = {"name": "weather", "arguments": arguments}
    tool_calls = [{"id": "call_1", "type": "function", "function": function}]
    async with anthropic_client(an_app(FakeFrontend(an_answer("length", tool_calls=tool_calls)))) as client:
        message: Any = await client.messages.create(**HELLO | {"max_tokens": 1})
    (block,) = message.content
    assert (block.type, block.name, block.input) == ("tool_use", "weather", {})
    assert message.stop_reason == "max_tokens"


async def test_key_without_the_right_is_refused() -> None:
    frontend = FakeFrontend()
    async with anthropic_client(an_app(frontend, access=known(rights=ALL_RIGHTS - {Right.INFERENCE}))) as client:
        with pytest.raises(anthropic.PermissionDeniedError) as refused:
            await client.messages.create(**HELLO)
        assert error_of(refused.value)["type"] == "permission_error"
        with pytest.raises(anthropic.PermissionDeniedError):
            await client.messages.count_tokens(model=HELLO["model"], messages=HELLO["messages"])
    assert not frontend.bodies


async def test_forced_path_and_objectives_are_taken_from_headers() -> None:
    frontend = FakeFrontend(RateLimited("no room", "tokens", 2.0, {}))
    async with a_client(an_app(frontend, allow_path_header=True)) as http:
        headers = {"x-baton-path": Route.PREFILL_DECODE, "x-baton-ttft-slo-ms": "50"}
        answer: httpx.Response = await http.post(URL, json=HELLO | {"service_tier": "flex"}, headers=headers)
    (terms,) = frontend.terms
    assert answer.status_code == 429
    assert (terms.path, terms.ttft_s, terms.slo_class) == (Route.PREFILL_DECODE, 0.05, SloClass.BATCH)
