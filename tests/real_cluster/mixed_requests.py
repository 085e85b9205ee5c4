"""Requests of all kinds that clients make, some of which leave before their end."""

import asyncio
import json
import random
from typing import Any, NamedTuple
from uuid import uuid4

import httpx

from tests.real_cluster.service import Service

AT_ONCE = 12
PATIENCE_S = 180.0
"""A worker that is killed is replaced meanwhile."""
MOST_OF_A_STREAM = 300
"""Tokens of a stream that its client leaves."""


class Told(NamedTuple):
    """The usage that an answer tells."""

    num_prompts: int
    prompt_tokens: int
    cached_tokens: int | None
    """None for several prompts: the answer tells that of the last one."""
    completion_tokens: int


class Offered(NamedTuple):
    """By the `x-request-id` of the HTTP request."""

    told: dict[str, Told]
    """Of answers that came to their end."""
    left: dict[str, int]
    """Of those whose client left: the most tokens that they may have been given."""
    failed: dict[str, int]
    """The same of all others: they were refused, or ended in the middle."""

    def with_more(self, more: "Offered") -> "Offered":
        return Offered(self.told | more.told, self.left | more.left, self.failed | more.failed)


async def offered(service: Service, model: str, key: str, number: int, seed: int = 0) -> Offered:
    """Offer so many. Another `seed` makes other requests."""
    rng, at_once = random.Random(f"{number} {seed}"), asyncio.Semaphore(AT_ONCE)
    found = Offered({}, {}, {})
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_S, headers=headers) as http:

        async def one(seed: int, kind: int) -> None:
            name = f"mixed-{uuid4().hex}"
            body: dict[str, Any] = {"model": model, "max_tokens": 5 + seed % 40, "ignore_eos": True}
            path = ("P->D", "D", "P", None)[seed % 4]
            named = {"x-request-id": name} | ({} if path is None else {"x-baton-path": path})
            async with at_once:
                if kind == 0:
                    prompts = [f"{seed} {word}" for word in ("one", "two", "three")]
                    several = body | {"prompt": prompts, "n": 2}
                    told = await whole(http, "/v1/completions", several, {"x-request-id": name}, len(prompts))
                    most = 2 * len(prompts) * body["max_tokens"]
                else:
                    body |= {"messages": [{"role": "user", "content": f"{seed} " * (1 + seed % 200)}]}
                    if kind == 1:
                        body |= {"stream": True, "max_tokens": MOST_OF_A_STREAM}
                        told = None
                        await left_early(http, body, named)
                    else:
                        streamed = {"stream": True, "stream_options": {"include_usage": True}} if kind == 2 else {}
                        told = await whole(http, "/v1/chat/completions", body | streamed, named, 1)
                    most = body["max_tokens"]
            if told is not None:
                found.told[name] = told
            else:
                (found.left if kind == 1 else found.failed)[name] = most

        await asyncio.gather(*(one(rng.randrange(10**6), rng.randrange(4)) for _ in range(number)))
    return found


async def whole(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str], num_prompts: int
) -> Told | None:
    """The usage of an answer that the client got to its end. None for any other: the ingress may be killed meanwhile,
    and a request may be refused.
    """
    try:
        response = await http.post(path, json=body, headers=headers)
    except httpx.TransportError:
        return None
    if not response.is_success:
        return None
    usage = streamed_usage(response.text) if body.get("stream") else response.json()["usage"]
    if usage is None:
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Told(num_prompts, usage["prompt_tokens"], cached if num_prompts == 1 else None, usage["completion_tokens"])


def streamed_usage(text: str) -> dict[str, Any] | None:
    """What the last chunk of a stream says. None if the stream broke off."""
    chunks = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    told: list[dict[str, Any]] = [usage for chunk in chunks if (usage := json.loads(chunk).get("usage"))]
    return told[-1] if told else None


async def left_early(http: httpx.AsyncClient, body: dict[str, Any], headers: dict[str, str]) -> None:
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            async for _ in response.aiter_lines():
                break
    except httpx.TransportError:
        pass
