"""In a network namespace of its own: clients whose handshakes are under way when an ingress replica stops listening.

unshare --net python -m tests.nodes.handshakes    # with net.ipv4.tcp_migrate_req=1, and without
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from cluster.config.ingress import IngressConfig
from tests.component.api.server.test_listener import SERVICE, answering, free_port

NUM_ROUNDS, NUM_CLIENTS = 4, 8
REQUEST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
REQUEST += b"Connection: close\r\n\r\n{}"
UNDER_WAY_S = 0.05
"""Time in which the clients' first packets arrive, in seconds. Their acknowledgements do not."""
MIGRATES = Path("/proc/sys/net/ipv4/tcp_migrate_req")


@contextmanager
def without_acknowledgements(port: int) -> Iterator[None]:
    """As on a network where a packet takes its time."""
    rule = ["INPUT", "-p", "tcp", "--dport", str(port), "--tcp-flags", "SYN,ACK", "ACK", "-j", "DROP"]
    subprocess.run(["iptables", "-A", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["iptables", "-D", *rule], check=True)


async def asked(port: int) -> str:
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST)
            answer = await reader.read()
            writer.close()
    except OSError:
        return "reset"
    return "answered" if answer.endswith(b"last\r\n0\r\n\r\n") else repr(answer)


async def run() -> Counter[str]:
    """What became of the clients."""
    config, ends = IngressConfig(port=free_port()), Counter[str]()
    for _ in range(NUM_ROUNDS):
        old, new = [await HttpListener.start(answering(), Gatekeeper(config), SERVICE) for _ in range(2)]
        with without_acknowledgements(config.port):
            clients = [asyncio.create_task(asked(config.port)) for _ in range(NUM_CLIENTS)]
            await asyncio.sleep(UNDER_WAY_S)
            closing = asyncio.create_task(old.close())
            await asyncio.sleep(UNDER_WAY_S)
        ends.update(await asyncio.gather(*clients))
        await closing
        await new.close()
    return ends


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    seen = {}
    for migrates in ("1", "0"):
        MIGRATES.write_text(migrates)
        seen[migrates] = asyncio.run(run())
    sys.stdout.write(json.dumps(seen))
