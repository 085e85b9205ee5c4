"""`python -m bench.fronts.waiting_clients`: clients that send the same chat completion again and again, each after the
answer to its last one. Reads a ClientLoad from standard input, and prints the seconds that each request took, as JSON.
"""

import asyncio
import sys
import time

import httpx
import msgspec

PATIENCE_S = 60.0
"""Time for one answer, in seconds. More lets a bench hang for longer; less ends it on a busy machine."""


class ClientLoad(msgspec.Struct, frozen=True):
    url: str
    headers: dict[str, str]
    body: bytes
    num_clients: int
    num_requests: int
    """Of all clients together."""
    pause_s: float
    """Between an answer and the client's next request, in seconds."""


async def latencies_s(load: ClientLoad) -> list[float]:
    """From here: what a process of its own measures. Raises RuntimeError if it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.fronts.waiting_clients",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate(msgspec.json.encode(load))
    if process.returncode:
        raise RuntimeError(f"the clients have ended with {process.returncode}")
    return msgspec.json.decode(printed, type=list[float])


async def measured(load: ClientLoad) -> list[float]:
    found: list[float] = []
    numbers = iter(range(load.num_requests))
    headers = {**load.headers, "content-type": "application/json"}
    async with httpx.AsyncClient(base_url=load.url, headers=headers, timeout=PATIENCE_S) as http:

        async def client() -> None:
            for _ in numbers:
                began = time.perf_counter()
                (await http.post("/v1/chat/completions", content=load.body)).raise_for_status()
                found.append(time.perf_counter() - began)
                await asyncio.sleep(load.pause_s)

        (await http.get("/healthz")).raise_for_status()  # the connection is open before the first request
        await asyncio.gather(*(client() for _ in range(load.num_clients)))
    return found


def main() -> None:
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=ClientLoad)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(measured(load))))


if __name__ == "__main__":
    main()
