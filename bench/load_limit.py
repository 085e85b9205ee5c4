"""What the HTTP client of `baton load` takes of one core, beside two general ones that read the same streams.

    make bench-load

A server in another process streams as many tokens as are asked for, one event each, at a fixed pace. It does nothing
else. CPU time is that of the client's process, for one prompt that is the same in all requests. The clients run without
what `baton load` adds: the generator, the records, the view, and the prompts, which are measured alone.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import httpx
import uvloop

from bench.fronts.free_ports import free_port
from cluster.load.client.answer import StreamedAnswer
from cluster.load.client.client import LoadClient
from cluster.load.client.endpoint import Api, Endpoint, body_of
from cluster.load.prompts.texts import PromptWriter, Wording
from cluster.load.sender import RequestForm, Sender
from cluster.load.workload import MixSource, fixed_mix
from cluster.simulation.traffic.workload import Speaker

PACE_S = 0.005
LIMIT_S = 60.0
PROMPTS, PROMPT_REPEATS = (1000, 30_000), 500
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_START = b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"m","choices":['
_TOKEN = _START + b'{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
_LAST = _START + b'{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length"}]}\n\n'
_USAGE = _START + b'],"usage":{"prompt_tokens":10,"completion_tokens":%d}}\n\ndata: [DONE]\n\n'

Ask = Callable[[bytes], Awaitable[StreamedAnswer]]


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            tokens = int((await reader.readexactly(length)).partition(b'"max_tokens":')[2].partition(b",")[0])
            writer.write(_HEAD)
            for _ in range(tokens - 1):
                writer.write(_chunk(_TOKEN))
                await asyncio.sleep(PACE_S)
            writer.write(_chunk(_LAST) + _chunk(_USAGE % tokens) + b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


async def serve(port: int) -> None:
    async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
        print("ready", flush=True)
        await server.serve_forever()


async def ours(endpoint: Endpoint, stack: AsyncExitStack) -> Ask:
    client = LoadClient(endpoint)
    stack.callback(client.close)

    async def ask(body: bytes) -> StreamedAnswer:
        return (await client.exchange(endpoint.post(Api.CHAT.path, {}, body), LIMIT_S)).stream

    return ask


async def with_aiohttp(endpoint: Endpoint, stack: AsyncExitStack) -> Ask:
    connector = aiohttp.TCPConnector(limit=0)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))

    async def ask(body: bytes) -> StreamedAnswer:
        stream = StreamedAnswer()
        async with session.post(f"{endpoint.url}{Api.CHAT.path}", data=body) as response:
            async for part in response.content.iter_any():
                stream.feed(part, time.perf_counter())
        return stream

    return ask


async def with_httpx(endpoint: Endpoint, stack: AsyncExitStack) -> Ask:
    limits = httpx.Limits(max_connections=None)
    client = await stack.enter_async_context(httpx.AsyncClient(limits=limits, timeout=LIMIT_S))

    async def ask(body: bytes) -> StreamedAnswer:
        stream = StreamedAnswer()
        async with client.stream("POST", f"{endpoint.url}{Api.CHAT.path}", content=body) as response:
            async for part in response.aiter_raw():
                stream.feed(part, time.perf_counter())
        return stream

    return ask


CLIENTS = {"baton load": ours, "aiohttp": with_aiohttp, "httpx": with_httpx}


async def cpu_s(client: str, endpoint: Endpoint, tokens: int, number: int, num_open: int) -> float:
    """CPU seconds of so many requests."""
    body = body_of(Api.CHAT, "m", [(Speaker.USER, "hello")], tokens, {})
    async with AsyncExitStack() as stack:
        ask = await CLIENTS[client](endpoint, stack)
        await ask(body)
        left = iter(range(number))

        async def use() -> None:
            for _ in left:
                assert (await ask(body)).num_output == tokens

        began = time.process_time()
        await asyncio.gather(*(use() for _ in range(num_open)))
        return time.process_time() - began


def print_prompts(num_rounds: int) -> None:
    """CPU time of the bytes of a request, by the tokens of its prompt."""
    endpoint = Endpoint.parse("http://127.0.0.1:1")
    client = LoadClient(endpoint)
    form = RequestForm(api=Api.CHAT, model="m", fields={}, headers={}, timeout_s=LIMIT_S)
    sender = Sender(client, endpoint, form, PromptWriter(Wording(), "bench"))
    print(f"{'prompt':>12}{'us':>10}")
    for tokens in PROMPTS:
        (row,) = MixSource("", fixed_mix(tokens, 1), None).rows(1, 0, None)
        took_s = []
        for _ in range(num_rounds):
            began = time.process_time()
            for _ in range(PROMPT_REPEATS):
                sender.encoded(row)
            took_s.append((time.process_time() - began) / PROMPT_REPEATS)
        print(f"{tokens:12}{1e6 * min(took_s):10.0f}")
    client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", type=int, metavar="PORT", help="be the server")
    parser.add_argument("--requests", type=int, default=200, help="of each kind (%(default)s)")
    parser.add_argument("--tokens", type=int, default=200, help="of a long answer (%(default)s)")
    parser.add_argument("--open", type=int, default=32, help="requests at a time (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of them counts (%(default)s)")
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve(arguments.serve))
    port = free_port()
    server = subprocess.Popen([sys.executable, "-m", "bench.load_limit", "--serve", str(port)], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None and server.stdout.readline()
        endpoint = Endpoint.parse(f"http://127.0.0.1:{port}")
        print(f"{'client':>12}{'us/token':>10}{'us/request':>12}")
        for client in CLIENTS:
            number, num_open = arguments.requests, arguments.open
            short, long = (
                min(uvloop.run(cpu_s(client, endpoint, tokens, number, num_open)) for _ in range(arguments.rounds))
                for tokens in (1, arguments.tokens)
            )
            token_s = (long - short) / number / (arguments.tokens - 1)
            request_s = short / number
            print(f"{client:>12}{1e6 * token_s:10.1f}{1e6 * request_s:12.0f}")
    finally:
        server.kill()
        server.wait()
    print_prompts(arguments.rounds)


if __name__ == "__main__":
    main()
