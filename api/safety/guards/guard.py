"""The guard: a model or classifier of its own that scores texts, asked over HTTP.

A guard that fails never makes a text safe: every text has scores, or the caller gets an error that says why it has
none. What clients write decides neither whether the guard is asked nor whether it counts as alive: long texts go in
excerpts, and for the breaker an answer that is no verdict is an answer.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx2
import msgspec

from api.safety.guards.breaker import Bulkhead, CallEnd, CircuitBreaker
from api.safety.guards.dialects.dialect import GuardDialect, GuardNonsense, GuardRequest
from api.safety.guards.dialects.llama_guard import LlamaGuardDialect
from api.safety.guards.dialects.moderations import ModerationsDialect
from api.safety.guards.dialects.qwen3_guard import Qwen3GuardDialect
from api.safety.guards.dialects.shield_gemma import ShieldGemmaDialect
from api.safety.verdict import Category
from api.state.postgres.fair_shares import Shares
from cluster.config.safety import GuardConfig

DIALECTS: Mapping[str, Callable[[str], GuardDialect]] = {
    "llama_guard": LlamaGuardDialect,
    "shield_gemma": ShieldGemmaDialect,
    "qwen3_guard": Qwen3GuardDialect,
    "moderations": ModerationsDialect,
}
MAX_ANSWER_BYTES = 64 << 10
"""Bytes of a guard's answer. Answers of all dialects have less than half as many. More lets an endpoint that never ends
take memory; fewer refuses answers with log probabilities.
"""
OVERLAP_CHARS = 400
"""Characters that an excerpt has in common with the one before. More costs more calls; fewer cuts through sentences,
which are in no excerpt as a whole then.
"""
EXCERPTS_AT_ONCE = 4
"""Calls for one text at a time. More lets one long text take the guard from others; fewer scans fewer excerpts within
the deadline.
"""
WAITING_OF_ONE = 0.75
"""The share of `max_waiting` that one tenant may have. More leaves less room to others in a burst of one tenant; less
leaves texts of a burst unscanned although nobody else is there.
"""
FAIR_SHARE = 0.5
"""Share of the deadline that a call must have had for its timeout to count as a failure of the guard. Less lets texts
that have waited, or that are long, open the breaker; more opens it later for a guard that hangs.
"""
IDLE_CONNECTION_S = 2.0
"""Time after which an idle connection is closed, in seconds. Longer than the guard's own (5 s is common) sends calls
into closing connections; shorter opens more connections.
"""
_NOT_FURTHER = frozenset(
    {"continue_final_message", "echo", "max_completion_tokens", "n", "prompt", "stop", "stream", "suffix", "tools"}
)
"""Fields that change what is asked, or the form of the answer, in every dialect."""
_OF_THE_TEXT = frozenset({400, 413, 422})
"""Statuses that refuse one text."""


class GuardUnavailable(Exception):
    """The guard has not scored the text."""


class Guard:
    """The guard of a deployment, as one ingress replica uses it."""

    def __init__(self, config: GuardConfig) -> None:
        """Raises ValueError: the key is missing, or cannot be sent; `extra_body` has a field of the dialect."""
        self.version = _version(config)
        """For records of what it has said."""
        self._url = config.url.rstrip("/")
        self._dialect = DIALECTS[config.dialect](config.model)
        self._extra_body = _further_fields(config, self._dialect)
        self._headers = {"content-type": "application/json", "accept-encoding": "identity", **_key(config)}
        self._max_chars = config.max_chars
        limits = httpx2.Limits(
            max_connections=config.max_concurrent,
            max_keepalive_connections=config.max_concurrent,
            keepalive_expiry=IDLE_CONNECTION_S,
        )
        # a bare transport: a client would follow redirects, keep cookies, and take proxies from the environment
        self._transport = httpx2.AsyncHTTPTransport(limits=limits, trust_env=False)
        # A tenant may have all calls while nobody else waits: each is short, and the next one is another tenant's
        self._slots = Shares(config.max_concurrent, config.max_concurrent)
        of_one = max(1, int(config.max_waiting * WAITING_OF_ONE))
        self._room = Bulkhead(config.max_concurrent + config.max_waiting, config.max_concurrent + of_one)
        self._breaker = CircuitBreaker()

    async def scores(self, text: str, *, tenant: str, is_answer: bool, deadline_s: float) -> Mapping[Category, float]:
        """The score of every category that the guard has looked for. A blank text has none. `tenant`: whose text it is.
        No tenant takes the guard from the others.

        Raises:
            GuardUnavailable: it has not answered, or must not be asked now.
            GuardNonsense: it refuses the text, or its answer is not understood.
        """
        if not text.strip():
            return {}
        if not self._room.enter(tenant):
            raise GuardUnavailable(f"{self._room.num_inside} texts wait for the guard")
        ends_at = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout_at(ends_at):
                return await self._whole(text, tenant, is_answer, ends_at - deadline_s * FAIR_SHARE, ends_at)
        except TimeoutError:
            raise GuardUnavailable(f"the guard has not answered within {deadline_s:g} s") from None
        finally:
            self._room.leave(tenant)

    async def close(self) -> None:
        await self._transport.aclose()

    async def _whole(
        self, text: str, tenant: str, is_answer: bool, fair_until: float, ends_at: float
    ) -> Mapping[Category, float]:
        """The highest scores of all excerpts."""
        at_once = asyncio.Semaphore(EXCERPTS_AT_ONCE)

        async def score(excerpt: str) -> Mapping[Category, float]:
            async with at_once, self._slots.one(tenant):
                asked = self._dialect.request(excerpt, is_answer=is_answer)
                return self._dialect.scores(await self._answer(asked, fair_until, ends_at))

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(score(excerpt)) for excerpt in excerpts(text, self._max_chars)]
        except* GuardUnavailable as errors:
            error: Exception = errors.exceptions[0]
        except* GuardNonsense as errors:
            error = errors.exceptions[0]
        else:
            found = [task.result() for task in tasks]
            return {category: max(one.get(category, 0.0) for one in found) for category in set().union(*found)}
        raise error

    async def _answer(self, asked: GuardRequest, fair_until: float, ends_at: float) -> bytes:
        """The body of one answer. `fair_until`: when the call must have begun for its timeout to count."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        permit = self._breaker.start(begun)
        if permit is None:
            raise GuardUnavailable("the guard has failed too often, and is not asked for a while")
        end = CallEnd.UNKNOWN
        try:
            status, answer = await self._exchange(asked)
            end = CallEnd.ANSWERED if status == 200 or status in _OF_THE_TEXT else CallEnd.FAILED
        except httpx2.TransportError as error:
            end = CallEnd.FAILED
            raise GuardUnavailable(f"the guard does not answer ({type(error).__name__}: {error})") from error
        except asyncio.CancelledError:
            if begun <= fair_until and loop.time() >= ends_at:
                end = CallEnd.FAILED
            raise
        finally:
            self._breaker.end(permit, end, loop.time())
        if status in _OF_THE_TEXT:
            raise GuardNonsense(f"the guard refuses the text with status {status}")
        if status != 200:
            raise GuardUnavailable(f"the guard answers with status {status}")
        if len(answer) > MAX_ANSWER_BYTES:
            raise GuardNonsense(f"the guard's answer has more than {MAX_ANSWER_BYTES} bytes")
        return answer

    async def _exchange(self, asked: GuardRequest) -> tuple[int, bytes]:
        """The status, and the body: a little more than MAX_ANSWER_BYTES of it at most."""
        body = msgspec.json.encode({**self._extra_body, **asked.fields})
        request = httpx2.Request("POST", self._url + asked.path, headers=self._headers, content=body)
        response = await self._transport.handle_async_request(request)
        try:
            answer = bytearray()
            async for part in response.aiter_raw():
                answer += part
                if len(answer) > MAX_ANSWER_BYTES:
                    break
            return response.status_code, bytes(answer)
        finally:
            await response.aclose()


def excerpts(text: str, most: int) -> Sequence[str]:
    """Parts of a text of at most `most` characters, which overlap."""
    step = most - OVERLAP_CHARS
    return [text[begin : begin + most] for begin in range(0, max(1, len(text) - OVERLAP_CHARS), step)]


def _version(config: GuardConfig) -> str:
    """Guards that are asked with other further fields may judge otherwise, and have another version."""
    name = f"{config.dialect}:{config.model}"
    if not config.extra_body:
        return name
    further = msgspec.json.encode(config.extra_body, order="deterministic")
    return f"{name}:{hashlib.sha256(further).hexdigest()[:12]}"


def _further_fields(config: GuardConfig, dialect: GuardDialect) -> Mapping[str, Any]:
    """Raises ValueError for a field that the dialect sets itself."""
    if own := config.extra_body.keys() & (dialect.request("", is_answer=False).fields.keys() | _NOT_FURTHER):
        raise ValueError(f"guard.extra_body: the dialect {config.dialect} sets {', '.join(sorted(own))} itself")
    return config.extra_body


def _key(config: GuardConfig) -> dict[str, str]:
    if config.key_variable is None:
        return {}
    key = os.environ.get(config.key_variable, "")
    if not (key.isascii() and key.isprintable() and key.strip()):
        raise ValueError(f"guard.key_variable: the environment variable {config.key_variable} contains no key")
    return {"authorization": f"Bearer {key.strip()}"}
