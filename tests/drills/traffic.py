"""Greedy streams whose right text is known, one after another in each of a few threads, until they are told to stop.
They go on while there is no ingress, and find another one that has come in its place.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.drills.client import NOT_REACHED, Client, Seen
from tests.drills.participants import MODEL
from tests.drills.word_lists import word_list

NUM_AT_ONCE = 3
PROMPT_TOKENS = 150
ANSWER_TOKENS = 400
"""More than the prompt has: each of its KV blocks is needed."""
CLIENT_TIMEOUT_S = 120.0
RETRY_S = 0.5


@dataclass(frozen=True)
class Answer:
    outcome: str
    asked_at: float
    seen: Seen


class Traffic:
    def __init__(
        self, host: Callable[[], str], port: int, seed: int, num_at_once: int = NUM_AT_ONCE, path: str | None = None
    ) -> None:
        """Starts. `host`: asked before each stream, and may raise httpx.TransportError while there is no ingress.
        `seed`: another one finds no warm cache. `path`: the only one that the streams may take.
        """
        self._host, self._port, self._path = host, port, path
        self._seeds = itertools.count(seed)
        self._stopping = threading.Event()
        self.answers: list[Answer] = []
        self._threads = [threading.Thread(target=self._ask_again_and_again, daemon=True) for _ in range(num_at_once)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """When the last streams have ended."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(CLIENT_TIMEOUT_S)

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(answer.outcome for answer in self.answers)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """What the service said to those that it refused, and why others did not reach it."""
        return [answer.seen.error for answer in self.answers if answer.seen.error is not None]

    def longest_silence_s(self, since: float) -> float:
        """Without a token for one of the streams, from that moment on."""
        return max(
            answer.seen.longest_silence_s(max(since, answer.asked_at))
            for answer in self.answers
            if answer.seen.ended_at is None or answer.seen.ended_at > since
        )

    def _ask_again_and_again(self) -> None:
        while not self._stopping.is_set():
            self.answers.append(self._ask())

    def _ask(self) -> Answer:
        asked_at = time.monotonic()
        try:
            client = Client(self._port, CLIENT_TIMEOUT_S, self._host(), self._path)
            client.ask(MODEL, word_list(next(self._seeds), PROMPT_TOKENS), ANSWER_TOKENS)
        except (OSError, httpx.TransportError) as error:
            self._stopping.wait(RETRY_S)
            return Answer(NOT_REACHED, asked_at, Seen(error={"message": repr(error)}, ended_at=time.monotonic()))
        client.wait_for_end(CLIENT_TIMEOUT_S)
        return Answer(client.outcome, asked_at, client.seen)
