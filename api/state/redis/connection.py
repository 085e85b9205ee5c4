"""A connection to Redis: commands go out and answers come in without a task or a stream between the socket and whoever
asks.

redis-py makes the connection, with all that a URL may say of it: TLS, credentials, the number of the database. Its own
way to send a command and to read its answer takes several times the CPU time of this one. Each request pays that whose
round trip nobody shares.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.exceptions import ConnectionError, InvalidResponse

_INCOMPLETE = object()
"""What the parser returns while an answer has not come whole."""

Answers = list[Any] | Exception
"""The answers to a batch of commands, some of which may be errors of Redis; or why there are none."""


class RedisConnection(asyncio.Protocol):
    """One batch of commands is on its way at a time."""

    def __init__(self, connection: AbstractConnection, lost: Callable[[], None]) -> None:
        """`connection`: connected, and nobody else uses it. `lost`: called once, when the connection is closed."""
        self._connection = connection
        self._lost = lost
        self._is_lost = False
        self._parser = hiredis.Reader(
            protocolError=InvalidResponse, replyError=DefaultParser.parse_error, notEnoughData=_INCOMPLETE
        )
        self._number = 0
        self._answers: list[Any] = []
        self._answered: Callable[[Answers], None] | None = None
        """Gets the answers of the batch that is on its way. None if there is none."""
        writer = connection._writer  # redis-py has no public way to its transport
        assert writer is not None
        self._transport = writer.transport
        self._transport.set_protocol(self)

    def ask(self, packed: bytes, number: int, answered: Callable[[Answers], None]) -> None:
        """Send commands, of which there are `number`. `answered` is called once, not before this has returned."""
        self._number, self._answers, self._answered = number, [], answered
        self._transport.write(packed)

    def close(self, error: Exception) -> None:
        """What is on its way has no answer but this error."""
        self._transport.abort()
        self._end(error)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
            while (answer := self._parser.gets()) is not _INCOMPLETE:
                if isinstance(answer, ConnectionError):  # such as that Redis has not read its data yet
                    raise answer
                self._answers.append(answer)
        except Exception as error:  # nothing that follows on this connection can be read
            self.close(error)
            return
        if len(self._answers) > self._number:
            self.close(InvalidResponse("Redis has answered what nobody has asked"))
        elif len(self._answers) == self._number and self._answered is not None:
            answers, answered = self._answers, self._answered
            self._number, self._answers, self._answered = 0, [], None
            answered(answers)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionError("Redis has closed the connection"))

    def _end(self, error: Exception) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._connection._close()  # type: ignore[no-untyped-call]  # or redis-py says that nobody has closed it
        self._lost()
        if self._answered is not None:
            answered, self._answered = self._answered, None
            answered(error)
