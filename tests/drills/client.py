"""A client of the drills: one streamed completion, read in a thread, that can leave at any moment."""

import json
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from itertools import pairwise
from typing import Any

from cluster.network.keepalive import IDLE_S, PROBE_INTERVAL_S, PROBES
from tests.drills.word_lists import WordList, length_of

ANSWERED, LEFT, CONNECTION_LOST, NOT_REACHED = "answered", "left", "connection lost", "not reached"


@dataclass
class Seen:
    """What a client has seen so far."""

    text: str = ""
    arrivals: list[float] = field(default_factory=list, repr=False)
    """When each frame arrived."""
    num_tokens: int | None = None
    """What `usage` says, at the end."""
    path: str | None = None
    error: dict[str, Any] | None = None
    is_done: bool = False
    ended_at: float | None = None

    def longest_silence_s(self, since: float) -> float:
        """Between two frames, or from `since` to the first one after it, or from the last one to the end."""
        moments = [since, *(at for at in self.arrivals if at > since), self.ended_at or time.monotonic()]
        return max((later - earlier for earlier, later in pairwise(moments)), default=0.0)


class Client:
    """Connected on construction; asks once."""

    def __init__(self, port: int, timeout_s: float, host: str = "127.0.0.1", path: str | None = "P->D") -> None:
        """`path`: it must run there, or is refused where it cannot."""
        self.socket = socket.create_connection((host, port), timeout=timeout_s)
        _keep_alive(self.socket)
        self._authority = f"{host}:{port}"
        self._path = path
        self.seen = Seen()
        self._word_list: WordList | None = None
        self._num_tokens = 0
        self._changed = threading.Condition()
        self._has_left = False
        self._reading = threading.Thread(target=self._read, daemon=True)

    @property
    def has_ended(self) -> bool:
        return self.seen.ended_at is not None

    @property
    def has_asked(self) -> bool:
        return self._word_list is not None

    def ask(self, model: str, word_list: WordList, num_tokens: int) -> None:
        """On path P->D: the drills are about the handoff."""
        self._word_list, self._num_tokens = word_list, num_tokens
        self._send(
            {
                "model": model,
                "prompt": word_list.prompt,
                "max_tokens": num_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        self._reading.start()

    def wait_for_frames(self, number: int, timeout_s: float) -> None:
        with self._changed:
            arrived = self._changed.wait_for(lambda: self.has_ended or len(self.seen.arrivals) >= number, timeout_s)
        assert arrived and len(self.seen.arrivals) >= number, (
            f"{number} frames were awaited: {self.outcome}, {self.seen}"
        )

    def wait_for_end(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.has_ended, timeout_s)

    def leave(self) -> None:
        """Close the connection; what comes later is not read."""
        with self._changed:
            if self.has_ended:
                return
            self._has_left = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self._reading.join(timeout=5)
        assert self.has_ended

    @property
    def is_right(self) -> bool:
        """Everything that has arrived is the right answer, or its beginning."""
        return self._word_list is not None and self._word_list.is_continued_by(self.seen.text)

    @property
    def outcome(self) -> str:
        """What became of the request, in a word or two."""
        if not self.has_ended:
            return "no answer"
        if not self.is_right:
            return "WRONG ANSWER"
        if self._has_left:
            return LEFT
        if self.seen.error is not None:
            return f"error {self.seen.error['code']}"
        if not self.seen.is_done:
            return CONNECTION_LOST
        if not self._is_whole:
            return f"{self.num_tokens_seen} tokens"
        return ANSWERED if self.seen.num_tokens == self._num_tokens else f"usage: {self.seen.num_tokens} tokens"

    @property
    def num_prompt_tokens(self) -> int:
        return length_of(self._word_list.prompt) if self._word_list else 0

    @property
    def num_tokens_seen(self) -> int:
        """In the text, as far as it is right."""
        return length_of(self.seen.text)

    @property
    def _is_whole(self) -> bool:
        return self._word_list is not None and self.seen.text == self._word_list.answer(self._num_tokens)

    def _send(self, body: dict[str, Any]) -> None:
        payload = json.dumps(body).encode()
        head = [
            "POST /v1/completions HTTP/1.1",
            f"Host: {self._authority}",
            "Content-Type: application/json",
            *([f"x-baton-path: {self._path}"] if self._path else []),
            f"Content-Length: {len(payload)}",
            "",
            "",
        ]
        self.socket.sendall("\r\n".join(head).encode() + payload)

    def _read(self) -> None:
        try:
            response = HTTPResponse(self.socket)
            response.begin()
            self.seen.path = response.headers.get("x-baton-path")
            if response.status != 200:
                self.seen.error = json.loads(response.read())["error"]
                return
            for line in response:
                if line.startswith(b"data: "):
                    self._take(line.removeprefix(b"data: ").strip())
        except (OSError, HTTPException):
            pass  # the end of the connection: `outcome` says whether the answer was whole
        finally:
            self.socket.close()
            with self._changed:
                self.seen.ended_at = time.monotonic()
                self._changed.notify_all()

    def _take(self, data: bytes) -> None:
        with self._changed:
            if data == b"[DONE]":
                self.seen.is_done = True
                return
            chunk = json.loads(data)
            self.seen.error = chunk.get("error", self.seen.error)
            if usage := chunk.get("usage"):
                self.seen.num_tokens = usage["completion_tokens"]
            for choice in chunk.get("choices", []):
                self.seen.text += choice["text"]
                self.seen.arrivals.append(time.monotonic())
            self._changed.notify_all()


def _keep_alive(connected: socket.socket) -> None:
    """Have the system end the connection if the other machine is gone. One whose process is silent still answers."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_INTERVAL_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
