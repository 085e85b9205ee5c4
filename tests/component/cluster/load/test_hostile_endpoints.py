"""Whatever an endpoint does, a request has an ending: in time, and within bounds of memory."""

import asyncio
import json
import time
from typing import Any

import pytest

from cluster.load.client.client import LoadClient
from cluster.load.client.endpoint import Api
from cluster.load.prompts.texts import PromptWriter, Wording
from cluster.load.record import MAX_ERROR, LoadEnding, LoadRecord
from cluster.load.sender import RequestForm, Sender, retry_after
from cluster.simulation.traffic.workload import Arrival, PromptPiece, Speaker
from tests.component.cluster.load.fake_endpoint import (
    MODEL,
    STREAM_HEAD,
    Answer,
    FakeEndpoint,
    running,
    token_event,
    write_chunk,
    write_data,
    write_event,
    write_json,
)

TIMEOUT_S = 0.5
ROW = Arrival(arrival_s=0.0, num_prompt=20, num_output=5, pieces=(PromptPiece(Speaker.USER, "a", 20),))


async def fared(answer: Answer, max_retries: int = 0) -> tuple[LoadRecord, FakeEndpoint]:
    async with running(FakeEndpoint(instead=answer)) as fake:
        return await ask(fake, max_retries), fake


async def ask(fake: FakeEndpoint, max_retries: int = 0) -> LoadRecord:
    form = RequestForm(api=Api.CHAT, model=MODEL, fields={}, headers={}, timeout_s=TIMEOUT_S, max_retries=max_retries)
    client = LoadClient(fake.endpoint)
    sender = Sender(client, fake.endpoint, form, PromptWriter(Wording(), "salt"))
    try:
        return await sender.send(0, ROW, sender.encoded(ROW), due=(now := time.perf_counter()), started=now)
    finally:
        client.close()


def raw(*parts: bytes, then: str = "close") -> Answer:
    """`then`: `close`, `reset` or `wait`."""

    async def answer(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if then == "reset":
            writer.transport.abort()
        elif then == "close":
            writer.close()
        else:
            await asyncio.sleep(10 * TIMEOUT_S)

    return answer


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


WORD = chunk(b"data: " + json.dumps(token_event({"messages": []}, "word")).encode() + b"\n\n")

ENDINGS: dict[str, tuple[Answer, LoadEnding]] = {
    "no answer": (raw(then="wait"), LoadEnding.TIMED_OUT),
    "head and silence": (raw(STREAM_HEAD, then="wait"), LoadEnding.TIMED_OUT),
    "a token and silence": (raw(STREAM_HEAD, WORD, then="wait"), LoadEnding.TIMED_OUT),
    "closes at once": (raw(), LoadEnding.UNREACHABLE),
    "resets at once": (raw(then="reset"), LoadEnding.UNREACHABLE),
    "closes in mid-stream": (raw(STREAM_HEAD, WORD), LoadEnding.CUT),
    "ends before the answer does": (raw(STREAM_HEAD, WORD, b"0\r\n\r\n", then="wait"), LoadEnding.CUT),
    "no HTTP": (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), LoadEnding.BROKEN),
    "an upgrade": (raw(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), LoadEnding.BROKEN),
    "broken chunks": (raw(STREAM_HEAD, b"zz\r\n"), LoadEnding.BROKEN),
    "broken JSON": (raw(STREAM_HEAD, chunk(b'data: {"choices": [\n\n'), then="wait"), LoadEnding.BROKEN),
    "bytes that are no UTF-8": (raw(STREAM_HEAD, chunk(b'data: {"id": "\xff"}\n\n'), then="wait"), LoadEnding.BROKEN),
    "JSON of another API": (raw(STREAM_HEAD, chunk(b'data: {"choices": "no"}\n\n'), then="wait"), LoadEnding.BROKEN),
    "no stream": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", then="wait"),
        LoadEnding.BROKEN,
    ),
    "an error event": (
        raw(STREAM_HEAD, WORD, chunk(b'data: {"error": {"message": "lost"}}\n\n'), b"0\r\n\r\n", then="wait"),
        LoadEnding.ERROR_EVENT,
    ),
    "an error event that controls terminals": (
        raw(STREAM_HEAD, chunk(b'data: {"error": "\\u001b]0;x\\u0007\\nfine"}\n\n'), b"0\r\n\r\n", then="wait"),
        LoadEnding.ERROR_EVENT,
    ),
    "status 500": (raw(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops", then="wait"), LoadEnding.HTTP_ERROR),
    "headers without an end": (
        raw(b"HTTP/1.1 200 OK\r\n", *[b"X-A: " + b"a" * 8000 + b"\r\n"] * 20),
        LoadEnding.TOO_LARGE,
    ),
    "one header without an end": (raw(b"HTTP/1.1 200 OK\r\nX-A: ", *[b"a" * 8000] * 20), LoadEnding.TOO_LARGE),
}


@pytest.mark.parametrize("name", ENDINGS)
async def test_each_way_to_fail_has_its_ending(name: str) -> None:
    answer, ending = ENDINGS[name]
    record, _ = await fared(answer)
    assert record.ending is ending
    assert record.error.isprintable() and 0 < len(record.error) <= MAX_ERROR


async def test_interim_answers_come_before_the_answer() -> None:
    end = chunk(b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')
    record, _ = await fared(raw(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3, STREAM_HEAD, WORD, end, b"0\r\n\r\n"))
    assert record.ending is LoadEnding.FINISHED and record.num_output is None


async def test_answer_without_a_length_ends_with_its_connection() -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    events = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    record, _ = await fared(raw(head, events))
    assert record.ending is LoadEnding.FINISHED


async def test_endless_stream_is_given_up_in_time() -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while not writer.is_closing():
            write_event(writer, token_event(body, "word"))
            await writer.drain()
            await asyncio.sleep(0.005)

    record, _ = await fared(answer)
    assert record.ending is LoadEnding.TIMED_OUT and record.ttft_s is not None


@pytest.mark.parametrize(
    "limit", ["cluster.load.client.answer.MAX_LINE_BYTES", "cluster.load.client.connection.MAX_BODY_BYTES"]
)
async def test_flood_is_given_up_at_its_limit(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, 100_000)
    has_lines = "BODY" in limit

    async def answer(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while not writer.is_closing():
            write_chunk(writer, (b": no event\n" if has_lines else b"data: no end ") * 1000)
            await writer.drain()

    record, _ = await fared(answer)
    assert record.ending is LoadEnding.TOO_LARGE


async def test_nobody_listens() -> None:
    async with running(FakeEndpoint()) as fake:
        pass
    assert (await ask(fake)).ending is LoadEnding.UNREACHABLE


def refusal(status: str, head: str) -> Answer:
    async def answer(_: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        write_json(writer, {"error": {"message": "full"}}, status, head)

    return answer


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_refusals_are_no_failures_and_are_not_sent_again(status: str) -> None:
    record, fake = await fared(refusal(status, "Retry-After: 7\r\n"))
    assert (record.ending, record.retry_after_s, record.num_tries) == (LoadEnding.REFUSED, 7.0, 1)
    assert "full" in record.error and len(fake.bodies) == 1


async def test_refused_request_comes_back_when_it_may_and_has_waited_since_it_was_due() -> None:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if len(fake.bodies) == 1:
            write_json(writer, {}, "429 Too Many Requests", "Retry-After: 1\r\n")
            return
        writer.write(STREAM_HEAD)
        write_event(writer, token_event(body, "word"))
        write_data(writer, b"[DONE]")
        writer.write(b"0\r\n\r\n")

    async with running(fake := FakeEndpoint(instead=answer)):
        record = await ask(fake, max_retries=2)
    assert (record.ending, record.num_tries, record.retry_after_s) == (LoadEnding.FINISHED, 2, 1.0)
    assert record.ttft_s is not None and record.ttft_s >= 1.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"7", 7.0),
        (b" 0 ", 0.0),
        (b"", None),
        (b"soon", None),
        (b"-3", None),
        (b"1e9", None),
        (b"9" * 400, 999_999_999.0),
        (b"Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        (b"\xb2", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: bytes, seconds: float | None) -> None:
    assert retry_after(value) == seconds


async def test_endpoint_that_closes_an_idle_connection_costs_no_request() -> None:
    async with running(FakeEndpoint(closes_after_answer=True)) as fake:
        client = LoadClient(fake.endpoint)
        form = RequestForm(api=Api.CHAT, model=MODEL, fields={}, headers={}, timeout_s=5.0)
        sender = Sender(client, fake.endpoint, form, PromptWriter(Wording(), "salt"))
        records = [await sender.send(n, ROW, sender.encoded(ROW), 0.0, 0.0) for n in range(3)]
        client.close()
    assert [record.ending for record in records] == [LoadEnding.FINISHED] * 3
