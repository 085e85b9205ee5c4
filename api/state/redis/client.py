"""The client of Redis, which may be away and may forget: no caller waits for it for long, or depends on an answer."""

import asyncio
import hashlib
import logging
from typing import Any, NamedTuple, Self

import hiredis
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, NoScriptError, ResponseError, TimeoutError

from api.state.redis.connection import Answers, RedisConnection

logger = logging.getLogger("baton.state")

TIMEOUT_S = 0.25
"""How long Redis may take to answer before it counts as away, in seconds. Shorter takes a busy Redis for a lost one;
longer delays requests while Redis is away.
"""
ASK_AGAIN_S = 1.0
"""The time between two tries while Redis is away, in seconds. Shorter delays more requests; longer finds a Redis later
that is back.
"""
MAX_AT_ONCE = 200
"""Calls that share a round trip. More makes fewer round trips; fewer makes each of them shorter."""
MAX_PARTS = 4000
"""Parts of commands that share a round trip, unless one call has more. With more, scripts of many arguments take longer
than TIMEOUT_S together, so that a busy Redis is taken for a lost one; with fewer, there are more round trips.
"""

Command = tuple[str | bytes | int, ...]


class RedisScript(NamedTuple):
    """A Lua script, and the hash by which Redis knows it."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class ScriptAnswer(NamedTuple):
    value: Any
    """None if Redis is away, or has refused the script."""
    may_have_run: bool
    """Whether Redis may have run the script, or may still run it, though nobody has heard the answer."""


class RedisCall:
    """Commands that were asked for together, on their way."""

    __slots__ = ("answers", "commands", "is_sent")

    def __init__(self, commands: tuple[Command, ...]) -> None:
        self.commands = commands
        self.answers: asyncio.Future[list[Any] | None] = asyncio.get_running_loop().create_future()
        self.is_sent = False


class RedisClient:
    """Calls that come at the same time share a round trip, on one connection."""

    def __init__(self) -> None:
        self._redis: Redis | None = None
        self._connection: RedisConnection | None = None
        self._is_away = False
        self._not_before = 0.0
        self._calls: list[RedisCall] = []
        """Those that wait for the next round trip."""
        self._sent: list[RedisCall] = []
        """Those whose round trip is on its way."""
        self._is_quiet = asyncio.Event()
        """Nothing waits, is on its way, or is about to be."""
        self._is_quiet.set()
        self._opening: asyncio.Task[None] | None = None
        self._deadline = 0.0
        self._watch: asyncio.TimerHandle | None = None
        """Looks at the deadline of the round trip. It goes off once in TIMEOUT_S at most, not for each round trip."""

    def reach(self, url: str) -> None:
        """Use this Redis, unless one is in use already. The connection is made at the first call. Raises ValueError for
        an invalid URL.
        """
        if self._redis is None:
            self._redis = Redis.from_url(
                url,
                protocol=2,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
            )

    @property
    def is_there(self) -> bool:
        """Whether Redis is known and has answered the last call."""
        return self._redis is not None and not self._is_away

    async def close(self) -> None:
        await self._is_quiet.wait()
        if self._watch is not None:
            self._watch.cancel()
        if self._connection is not None:
            self._connection.close(ConnectionError("this client is closed"))
        if self._redis is not None:
            await self._redis.aclose()

    async def run(self, *commands: Command) -> list[Any] | None:
        """The answers to these commands. None if Redis is away, or refuses one of them."""
        call = self._begun(*commands)
        answers = None if call is None else await call.answers
        return None if answers is None else _unless_refused(answers)

    async def run_script(self, script: RedisScript, keys: list[str], *arguments: str | int) -> Any:
        """The answer of a script. None if Redis is away, or refuses it."""
        return (await self.answer_of(script, keys, *arguments)).value

    async def answer_of(self, script: RedisScript, keys: list[str], *arguments: str | int) -> ScriptAnswer:
        return await self.answered(script, self.begun(script, keys, *arguments))

    def begun(self, script: RedisScript, keys: list[str], *arguments: str | int) -> RedisCall | None:
        """A call of a script, which Redis runs before all calls that are asked for after this one. None while Redis is
        away.
        """
        return self._begun(("EVALSHA", script.sha, len(keys), *keys, *arguments))

    async def answered(self, script: RedisScript, call: RedisCall | None) -> ScriptAnswer:
        """The answer to what `begun` returned. Redis gets the text of the script only if it does not know the script,
        as after a restart.
        """
        if call is None:
            return ScriptAnswer(None, False)
        answers = await call.answers
        if answers is not None and isinstance(answers[0], NoScriptError):
            (_, _, *rest), *_ = call.commands
            return await self.answered(script, self._begun(("EVAL", script.text, *rest)))
        found = None if answers is None else _unless_refused(answers)
        return ScriptAnswer(found[0] if found else None, call.is_sent and answers is None)

    def _begun(self, *commands: Command) -> RedisCall | None:
        if self._unless_away() is None:
            return None
        call = RedisCall(commands)
        self._calls.append(call)
        if self._is_quiet.is_set():
            self._is_quiet.clear()
            asyncio.get_running_loop().call_soon(self._send)  # with what is asked for meanwhile
        return call

    def listener(self) -> PubSub | None:
        """A connection for subscriptions; None while Redis is away."""
        redis = self._unless_away()
        return None if redis is None else redis.pubsub()

    def _unless_away(self) -> Redis | None:
        return self._redis if asyncio.get_running_loop().time() >= self._not_before else None

    def _send(self) -> None:
        """Begin the next round trip. No caller that is cancelled stops it, so that a connection is never left in the
        middle of an answer.
        """
        if not self._calls:
            self._is_quiet.set()
            return
        if self._connection is None:
            self._opening = asyncio.create_task(self._open())
            return
        number = self._number_at_once()
        self._sent, self._calls = self._calls[:number], self._calls[number:]
        for call in self._sent:
            call.is_sent = True
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + TIMEOUT_S
        if self._watch is None:
            self._watch = loop.call_at(self._deadline, self._look)
        commands = [command for call in self._sent for command in call.commands]
        packed = b"".join([hiredis.pack_command(command) for command in commands])  # type: ignore[arg-type]
        self._connection.ask(packed, len(commands), self._answered)

    async def _open(self) -> None:
        assert self._redis is not None
        connection = self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            await connection.connect()
            self._connection = RedisConnection(connection, self._forget_connection)
        except Exception as error:  # every failure must end the wait of the callers
            self._lose(error)
        self._send()

    def _forget_connection(self) -> None:
        self._connection = None

    def _look(self) -> None:
        self._watch = None
        loop = asyncio.get_running_loop()
        if self._sent and self._connection is not None:
            if loop.time() < self._deadline:
                self._watch = loop.call_at(self._deadline, self._look)
            else:
                self._connection.close(TimeoutError("Redis has not answered in time"))

    def _answered(self, answers: Answers) -> None:
        """The round trip has ended."""
        if isinstance(answers, Exception):
            self._lose(answers)
        else:
            calls, self._sent = self._sent, []
            self._tell(calls, answers)
            if self._is_away:
                self._is_away = False
                logger.warning("Redis is back")
        self._send()

    def _tell(self, calls: list[RedisCall], answers: list[Any]) -> None:
        assert self._redis is not None
        meanings, rest = self._redis.response_callbacks, iter(answers)
        for call in calls:
            own = []
            for name, *_ in call.commands:
                answer, meaning = next(rest), meanings.get(str(name))
                own.append(answer if meaning is None or isinstance(answer, ResponseError) else meaning(answer))
            if not call.answers.done():  # done: its caller was cancelled
                call.answers.set_result(own)

    def _number_at_once(self) -> int:
        """How many of the calls that wait share the next round trip."""
        num_parts = 0
        for number, call in enumerate(self._calls[:MAX_AT_ONCE]):
            num_parts += sum(map(len, call.commands))
            if number and num_parts > MAX_PARTS:
                return number
        return min(len(self._calls), MAX_AT_ONCE)

    def _lose(self, error: Exception) -> None:
        """No call has an answer: neither those on their way nor those that wait."""
        calls, self._sent, self._calls = self._sent + self._calls, [], []
        for call in calls:
            if not call.answers.done():
                call.answers.set_result(None)
        self._not_before = asyncio.get_running_loop().time() + ASK_AGAIN_S
        if not self._is_away:
            self._is_away = True
            logger.warning("Redis is away, Baton goes on without it: %s", str(error) or type(error).__name__)


def _unless_refused(answers: list[Any]) -> list[Any] | None:
    for answer in answers:
        if isinstance(answer, ResponseError):
            logger.warning("Redis has refused a command: %s", answer)
            return None
    return answers
