"""Streams of responses, read in pieces."""

from collections.abc import AsyncIterator
from typing import Any

from openai import AsyncOpenAI


async def cut_after(client: AsyncOpenAI, number: int, **request: Any) -> tuple[str, list[Any]]:
    """A response, and the events that its client has seen before it left."""
    stream = await client.responses.create(model="m", input="Hello", stream=True, **request)
    seen = [event async for _, event in azip(range(number), stream)]
    await stream.close()
    return seen[0].response.id, seen


async def azip(numbers: Any, stream: Any) -> AsyncIterator[tuple[int, Any]]:
    for number in numbers:
        yield number, await anext(aiter(stream))


async def resumed(client: AsyncOpenAI, response: str, after: int | None = None) -> list[Any]:
    options: dict[str, Any] = {} if after is None else {"starting_after": after}
    return [event async for event in await client.responses.retrieve(response, stream=True, **options)]


def numbers(events: list[Any]) -> list[int]:
    return [event.sequence_number for event in events]
