"""What is asked and when: chats whose prefixes grow, long prompts with short answers, or both at once. Pure.

An open loop: requests arrive by a Poisson process, whatever has become of the earlier ones. A chat's history holds
answers that were written beforehand, not those that came; so every system is asked the same.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

CHAT, LONG = "chat", "long"
LONG_SHARES = {"chats": 0.0, "mixed": 0.2, "long prompts": 1.0}
"""The share of long prompts, by mix."""

CHAT_USER_TOKENS, CHAT_OUTPUT_TOKENS = (60, 110), (64, 128)
LONG_PROMPT_TOKENS, LONG_OUTPUT_TOKENS = (2000, 3500), (4, 12)
MOST_TURNS = 3
CONTINUED = 2 / 3
"""The share of chat requests that continue a conversation, if there is one."""
THINK_S = 2.0
"""Least time between two turns of a conversation."""

Text = Callable[[random.Random, int], str]
"""Makes a text of about as many tokens."""


@dataclass(frozen=True)
class Ask:
    """One request."""

    at_s: float
    """Since the start of its round."""
    kind: str
    messages: tuple[str, ...]
    """The user's and the assistant's in turn."""
    max_tokens: int
    """The answer has as many."""


@dataclass(frozen=True)
class _Conversation:
    messages: tuple[str, ...]
    """Messages of the conversation, up to and including the last answer."""
    turns: int
    last_at_s: float


def asks(mix: str, per_s: float, duration_s: float, rng: random.Random, text: Text) -> list[Ask]:
    """One round's requests, in order of arrival; the same for the same state of `rng`."""
    chats, taken, at_s = _Chats(rng, text), [], rng.expovariate(per_s)
    while at_s < duration_s:
        is_long = rng.random() < LONG_SHARES[mix]
        taken.append(_long(at_s, rng, text) if is_long else chats.next(at_s))
        at_s += rng.expovariate(per_s)
    return taken


def marked(ask: Ask, mark: str) -> Ask:
    """The same request with `mark` in front, so that no cache knows its prompt."""
    first, *others = ask.messages
    return replace(ask, messages=(f"{mark} {first}", *others))


def at_once(asked: Sequence[Ask]) -> list[Ask]:
    """Requests of a closed loop. They have no arrival times."""
    return [replace(ask, at_s=0.0) for ask in asked]


def _long(at_s: float, rng: random.Random, text: Text) -> Ask:
    return Ask(at_s, LONG, (text(rng, rng.randint(*LONG_PROMPT_TOKENS)),), rng.randint(*LONG_OUTPUT_TOKENS))


class _Chats:
    """The conversations that are open."""

    def __init__(self, rng: random.Random, text: Text) -> None:
        self._rng, self._text = rng, text
        self._open: list[_Conversation] = []

    def next(self, at_s: float) -> Ask:
        talk = self._continued(at_s) if self._rng.random() < CONTINUED else None
        talk = talk or _Conversation((), 0, -math.inf)
        messages = (*talk.messages, self._text(self._rng, self._rng.randint(*CHAT_USER_TOKENS)))
        max_tokens = self._rng.randint(*CHAT_OUTPUT_TOKENS)
        if talk.turns + 1 < MOST_TURNS:
            answer = self._text(self._rng, max_tokens)
            self._open.append(_Conversation((*messages, answer), talk.turns + 1, at_s))
        return Ask(at_s, CHAT, messages, max_tokens)

    def _continued(self, at_s: float) -> _Conversation | None:
        """The one that has waited longest, if its user has had the time to read."""
        if self._open and self._open[0].last_at_s + THINK_S <= at_s:
            return self._open.pop(0)
        return None
