"""`python -m bench.fronts.waiting_clients`: clients that send the same chat completion again and again, each after the
answer to its last one. Reads a ClientLoad from standard input, and prints the seconds that the requests to each target
took, as JSON.
"""

import asyncio
import random
import sys
import time

import httpx
import msgspec

PATIENCE_S = 60.0
"""Time for one answer, in seconds. More lets a bench hang for longer; less ends it on a busy machine."""


class Target(msgspec.Struct, frozen=True):
    url: str
    headers: dict[str, str]


class ClientLoad(msgspec.Struct, frozen=True):
    targets: list[Target]
    """A client sends to one after the other, in another order each time."""
    body: bytes
    num_clients: int
    num_requests: int
    """To each target, of all clients together."""
    pause_s: float
    """Between an answer and the client's next request, in seconds."""


async def latencies_s(load: ClientLoad) -> list[list[float]]:
    """From here: what a process of its own measures, by target. Raises RuntimeError if it fails."""
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
    return msgspec.json.decode(printed, type=list[list[float]])


async def measured(load: ClientLoad) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in load.targets]
    numbers = iter(range(load.num_requests))
    async with httpx.AsyncClient(headers={"content-type": "application/json"}, timeout=PATIENCE_S) as http:

        async def client() -> None:
            for number in numbers:
                for index in random.Random(number).sample(range(len(load.targets)), len(load.targets)):
                    target = load.targets[index]
                    began = time.perf_counter()
                    answer = await http.post(
                        f"{target.url}/v1/chat/completions", headers=target.headers, content=load.body
                    )
                    answer.raise_for_status()
                    found[index].append(time.perf_counter() - began)
                    await asyncio.sleep(load.pause_s)

        for target in load.targets:  # the connections are open before the first request
            (await http.get(f"{target.url}/healthz")).raise_for_status()
        await asyncio.gather(*(client() for _ in range(load.num_clients)))
    return found


def main() -> None:
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=ClientLoad)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(measured(load))))


if __name__ == "__main__":
    main()
