"""A bad network between a node and some others: slow, far away, lossy, or cut.

While a wire is in place, all frames of the node pass through this process, between the node's link and the bridge.
Frames from and to other addresses than those given pass at once.
"""

import heapq
import itertools
import random
import select
import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address

from tests.nodes.namespaces import Node, spliced

SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING = 263, 15, 4
"""linux/if_packet.h. With the first two, a frame comes with a header that says what Linux has left to the network card,
as it does between namespaces: to cut it into packets, and to sum it up. Sent with the same header, it is whole again.
"""
HEADER = 10
"""Bytes of that header."""
ALL_PROTOCOLS, IPV4 = 0x0003, b"\x08\x00"
MOST_BYTES = 70_000
"""Of a frame that is not cut into packets yet."""
SEED = 7


@dataclass(frozen=True)
class Quality:
    """Of a network, in each direction."""

    delay_s: float = 0.0
    bytes_per_s: float = float("inf")
    queue_bytes: int = 1 << 20
    """Frames beyond it are lost, as at a router."""
    loss: float = 0.0
    """Share of the frames that are lost. A frame may have up to 64 KiB of one connection."""


CUT = Quality(loss=1.0)


@contextmanager
def wire(node: Node, others: Collection[str], quality: Quality) -> Iterator[None]:
    """Have what the node exchanges with nodes at the other addresses travel over a network of this quality. Fails if
    they have exchanged nothing.
    """
    with spliced(node) as (at_node, at_bridge):
        relay = _Relay(at_node, at_bridge, frozenset(ip_address(other).packed for other in others), quality)
        try:
            yield
        finally:
            relay.stop()
        assert relay.num_concerned, "the wire has carried nothing between these nodes"


@dataclass(order=True)
class _Waiting:
    due_at: float
    number: int
    frame: bytes = field(compare=False)


class _Direction:
    def __init__(self, into: socket.socket, quality: Quality) -> None:
        self._into = into
        self._quality = quality
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._numbers = itertools.count()
        self._free_at = 0.0
        self._random = random.Random(SEED)

    def take(self, frame: bytes, is_concerned: bool) -> None:
        if not is_concerned:
            self._send(frame)
            return
        now = time.monotonic()
        is_full = self._waiting_bytes > self._quality.queue_bytes
        if is_full or self._random.random() < self._quality.loss:
            return
        self._free_at = max(now, self._free_at) + len(frame) / self._quality.bytes_per_s
        due_at = self._free_at + self._quality.delay_s
        heapq.heappush(self._waiting, _Waiting(due_at, next(self._numbers), frame))
        self._waiting_bytes += len(frame)

    def send_due(self) -> float:
        """Returns in how many seconds the next frame is due."""
        while self._waiting and self._waiting[0].due_at <= time.monotonic():
            frame = heapq.heappop(self._waiting).frame
            self._waiting_bytes -= len(frame)
            self._send(frame)
        return max(0.0, self._waiting[0].due_at - time.monotonic()) if self._waiting else float("inf")

    def _send(self, frame: bytes) -> None:
        try:
            self._into.send(frame)
        except OSError:  # the link is down, or its queue is full: networks lose frames then
            return


class _Relay:
    def __init__(self, at_node: str, at_bridge: str, others: frozenset[bytes], quality: Quality) -> None:
        self._others = others
        node, bridge = _socket(at_node), _socket(at_bridge)
        self._directions = {node: _Direction(bridge, quality), bridge: _Direction(node, quality)}
        self.num_concerned = 0
        """Frames between the node and the others."""
        self._woken, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._wake.close()
        self._thread.join()
        for one in (*self._directions, self._woken):
            one.close()

    def _run(self) -> None:
        while True:
            wait_s = min(direction.send_due() for direction in self._directions.values())
            readable, _, _ = select.select(
                [self._woken, *self._directions], [], [], None if wait_s == float("inf") else wait_s
            )
            if self._woken in readable:
                return
            for ready in readable:
                frame, (_, _, kind, *_) = ready.recvfrom(MOST_BYTES)
                if kind != PACKET_OUTGOING:
                    is_concerned = self._is_concerned(frame)
                    self.num_concerned += is_concerned
                    self._directions[ready].take(frame, is_concerned)

    def _is_concerned(self, frame: bytes) -> bool:
        packet = frame[HEADER:]
        return packet[12:14] == IPV4 and not self._others.isdisjoint((packet[26:30], packet[30:34]))


def _socket(link: str) -> socket.socket:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    raw.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    raw.bind((link, ALL_PROTOCOLS))
    return raw
