"""The open loop of bench/goodput_real.py against a server that speaks just enough HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.live.client import OpenLoad, OpenLoop
from bench.live.goodput import Answer
from bench.live.mixes import CHAT, LONG, Ask

EVENTS = (
    b'data: {"id":"a-1","choices":[{"delta":{"content":"1"}}]}\n\n',
    b'data: {"id":"a-1","choices":[{"delta":{"content":"2"}}]}\n\n',
    b'data: {"id":"a-1","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
)


class Server:
    """Streams an answer of two tokens to chats; refuses long prompts."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.bodies: list[dict[str, Any]] = []
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.seen.append(head)
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        if b"x-kind: long" in head:
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy")
        else:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
                b"Connection: close\r\n\r\n"
            )
            for event in EVENTS:
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
                await asyncio.sleep(0.01)
            writer.write(b"0\r\n\r\n")
        writer.close()


@asynccontextmanager
async def servers(count: int) -> AsyncIterator[list[Server]]:
    started = [Server() for _ in range(count)]
    listeners = [await asyncio.start_server(server.answer, "127.0.0.1", 0) for server in started]
    for server, listener in zip(started, listeners, strict=True):
        server.port = listener.sockets[0].getsockname()[1]
    yield started
    for listener in listeners:
        listener.close()
        await listener.wait_closed()


async def answers(load: OpenLoad) -> list[Answer]:
    loop = OpenLoop("a-model")
    await loop.prepare(load)
    await loop.run()
    return await loop.collect()


async def test_answers_come_in_the_order_of_the_asks_with_times_tokens_and_refusals() -> None:
    headers = {CHAT: {"x-kind": "chat"}, LONG: {"x-kind": "long"}}
    async with servers(1) as (server,):
        asked = [Ask(0.05, CHAT, ("hello",), 2), Ask(0.0, LONG, ("a book",), 2)]
        chat, book = await answers(OpenLoad(asked, [server.port], headers))
    assert (chat.status, chat.tokens, chat.prompt_tokens, chat.answer_id) == (200, 2, 7, "a-1")
    assert chat.ttft_s is not None and chat.tpot_s is not None and chat.tpot_s >= 0.005
    assert book.is_refused and book.ttft_s is None and "busy" in book.error


async def test_requests_by_priority_say_when_they_are_due() -> None:
    async with servers(1) as (server,):
        asked = [Ask(0.0, CHAT, ("hello",), 2), Ask(0.05, CHAT, ("hello again",), 2)]
        await answers(OpenLoad(asked, [server.port], {}, ttft_s={CHAT: 0.5}))
        await answers(OpenLoad(asked[:1], [server.port], {}))
    assert [body.get("priority") for body in server.bodies] == [500, 550, None]


async def test_of_several_servers_the_one_with_the_fewest_open_requests_is_next() -> None:
    async with servers(2) as started:
        asked = [Ask(0.0, CHAT, (f"hello {number}",), 2) for number in range(6)]
        await answers(OpenLoad(asked, [server.port for server in started], {}))
        assert [len(server.seen) for server in started] == [3, 3]


async def test_turns_of_a_conversation_meet_their_server_unless_it_is_busier() -> None:
    async with servers(2) as started:
        ports = [server.port for server in started]
        turns = [Ask(number / 5, CHAT, ("hello", *["and", "then"] * number), 2) for number in range(3)]
        await answers(OpenLoad(turns, ports, {}))
        assert sorted(len(server.seen) for server in started) == [0, 3]
        at_once = [Ask(0.0, CHAT, ("hello",), 2)] * 6
        await answers(OpenLoad(at_once, ports, {}))
        assert sorted(len(server.seen) for server in started) == [3, 6]


async def test_a_server_that_does_not_listen_is_an_answer_that_did_not_come() -> None:
    async with servers(1) as (server,):
        port = server.port
    (answer,) = await answers(OpenLoad([Ask(0.0, CHAT, ("hello",), 2)], [port], {}))
    assert answer.status == 0 and not answer.is_refused and answer.ttft_s is None
