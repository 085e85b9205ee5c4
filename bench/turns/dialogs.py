"""Dialogs with a model by the official client: how the turns before are told, or remembered."""

import time
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import openai
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import EasyInputMessageParam

Message = EasyInputMessageParam


class Spec(NamedTuple):
    """What a dialog's turns have in common."""

    model: str
    instructions: str
    max_output_tokens: int


class Told(NamedTuple):
    """One turn, as its client saw it."""

    ttft_s: float
    """Seconds to the first piece of text."""
    total_s: float
    text: str
    prompt_tokens: int
    cached_tokens: int
    known: float = 1.0
    """Share of the conversation that the prompt holds, or a summary in it stands for."""


class Dialog(ABC):
    def __init__(self, client: openai.AsyncOpenAI, spec: Spec) -> None:
        self._client, self._spec = client, spec

    @abstractmethod
    async def open(self) -> None:
        """Before its first turn."""

    @abstractmethod
    async def say(self, question: str) -> Told: ...

    async def _response(self, **asked: Any) -> Told:
        began_at = time.perf_counter()
        first_at, response = 0.0, None
        stream = await self._client.responses.create(
            model=self._spec.model,
            instructions=self._spec.instructions,
            max_output_tokens=self._spec.max_output_tokens,
            temperature=0,
            stream=True,
            **asked,
        )
        async for event in stream:
            if event.type == "response.output_text.delta":
                first_at = first_at or time.perf_counter()
            elif event.type in ("response.completed", "response.incomplete"):
                response = event.response
        ended_at = time.perf_counter()
        if response is None or not first_at:
            raise RuntimeError(f"a turn has no answer: {asked}")
        usage = response.usage
        told = Told(
            first_at - began_at,
            ended_at - began_at,
            response.output_text,
            usage.input_tokens,
            usage.input_tokens_details.cached_tokens,
        )
        return told._replace(known=_known(response))


class Stored(Dialog):
    """Turns in a conversation that the service stores."""

    def __init__(self, client: openai.AsyncOpenAI, spec: Spec, truncation: str = "disabled") -> None:
        super().__init__(client, spec)
        self._truncation = truncation

    async def open(self) -> None:
        self._conversation = (await self._client.conversations.create()).id

    async def say(self, question: str) -> Told:
        return await self._response(
            input=question, conversation=self._conversation, store=True, truncation=self._truncation
        )


class Stateless(Dialog):
    """The client sends the whole dialog with each turn."""

    async def open(self) -> None:
        self._messages: list[Message] = []

    async def say(self, question: str) -> Told:
        self._messages.append({"role": "user", "content": question})
        told = await self._response(input=self._messages, store=False)
        self._messages.append({"role": "assistant", "content": told.text})
        return told


class DropOldest(Stateless):
    """The client leaves the oldest turn out until the rest fits into `limit` tokens; its counting takes no time."""

    def __init__(self, client: openai.AsyncOpenAI, spec: Spec, limit: int) -> None:
        super().__init__(client, spec)
        self._limit = limit
        self._num_left_out = 0

    async def say(self, question: str) -> Told:
        while await self._num_tokens(question) > self._limit:
            del self._messages[:2]
            self._num_left_out += 2
        kept = len(self._messages) + 1
        return (await super().say(question))._replace(known=kept / (kept + self._num_left_out))

    async def _num_tokens(self, question: str) -> int:
        counted = await self._client.responses.input_tokens.count(
            model=self._spec.model,
            instructions=self._spec.instructions,
            input=[*self._messages, {"role": "user", "content": question}],
        )
        return counted.input_tokens


class Completions(Dialog):
    """Chat completions, which are stateless too."""

    async def open(self) -> None:
        self._chat: list[ChatCompletionMessageParam] = [{"role": "system", "content": self._spec.instructions}]

    async def say(self, question: str) -> Told:
        self._chat.append({"role": "user", "content": question})
        began_at = time.perf_counter()
        first_at, text, usage = 0.0, "", None
        stream = await self._client.chat.completions.create(
            model=self._spec.model,
            messages=self._chat,
            max_tokens=self._spec.max_output_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if piece := "".join(choice.delta.content or "" for choice in chunk.choices):
                first_at = first_at or time.perf_counter()
                text += piece
            usage = chunk.usage or usage
        ended_at = time.perf_counter()
        if usage is None or not first_at:
            raise RuntimeError(f"a turn has no answer: {question}")
        self._chat.append({"role": "assistant", "content": text})
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
        return Told(first_at - began_at, ended_at - began_at, text, usage.prompt_tokens, cached or 0)


def _known(response: Any) -> float:
    """The share of the items that the model saw, from the `context` of a response that was fitted into the window."""
    context = getattr(response, "context", None)
    if context is None:
        return 1.0
    told = context["kept_items"] + context["summarized_items"]
    return told / (told + context["dropped_items"])
