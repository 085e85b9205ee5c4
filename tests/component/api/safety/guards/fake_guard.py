"""A guard as an HTTP server in this process, which speaks every dialect and fails in every way.

It is gullible: like a model, it reads the prompt as one text, and judges the last turn that it finds there.
"""

import asyncio
import json
import math
import re
from enum import StrEnum
from typing import Any, Self

UNSAFE_WORD = "bomb"
NONSENSE_WORD = "gibberish"
"""The guard's answer to a text with this word is no verdict."""
TOO_LONG_WORD = "overlong"
"""The endpoint refuses a text with this word."""
_TURN = re.compile(r"<\|[^|>]*\|>|<(?:start|end)_of_turn>|(?m:^(?:User|Agent|Human Question|Chatbot Response):)")
_QUESTION = re.compile(r"defined safety policies\.(.*)Our safety principle is defined in the below:", re.DOTALL)


class GuardFault(StrEnum):
    HANG = "hang"
    DRIP = "a byte at a time"
    NONSENSE = "nonsense"
    NO_JSON = "no JSON"
    DEEP_JSON = "deep JSON"
    FAILS = "500"
    BUSY = "429"
    REDIRECT = "redirect"
    ENDLESS_BODY = "endless body"
    ENDLESS_HEAD = "endless head"
    CLOSED_IN_BODY = "closed in the body"
    CLOSED_AT_ONCE = "closed at once"
    NO_HTTP = "no HTTP"


_STATUSES: dict[GuardFault | None, str] = {
    GuardFault.FAILS: "500 Internal Server Error",
    GuardFault.BUSY: "429 Too Many Requests",
    GuardFault.REDIRECT: "307 Temporary Redirect",
}


class FakeGuard:
    """`probability`: of "unsafe", in log probabilities; None for a guard that gives none."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.fault: GuardFault | None = None
        self.probability: float | None = None
        self.delay_s = 0.0
        """Of every answer."""
        self.location = ""
        """Where REDIRECT leads."""
        self.num_calls = 0
        self.num_connections = 0
        """All that were ever open."""
        self.most_open = 0
        """Calls at the same time."""
        self.num_sent = 0
        """Bytes of bodies."""
        self.authorization = ""
        self.body: Any = None
        """Of the last call."""
        self._num_open = 0
        self._changed = asyncio.Condition()
        self._connected: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._connected.values():
            writer.transport.abort()
        await asyncio.gather(*self._connected)

    async def called(self, times: int) -> None:
        """Until it has been called so many times."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.num_calls >= times)

    async def left(self) -> None:
        """Until nobody is connected."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._connected)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connected[task] = writer
        self.num_connections += 1
        try:
            while await self._call(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            del self._connected[task]
            writer.transport.abort()
            await self._notify()

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", head)
        assert length
        self.body = body = json.loads(await reader.readexactly(int(length[1])))
        key = re.search(r"authorization: ([^\r]*)", head)
        self.authorization = key[1] if key else ""
        self.num_calls += 1
        self._num_open += 1
        self.most_open = max(self.most_open, self._num_open)
        await self._notify()
        try:
            await asyncio.sleep(self.delay_s)
            return await self._respond(head.split()[1], body, reader, writer)
        finally:
            self._num_open -= 1

    async def _respond(self, path: str, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        answer = json.dumps(self._answer(path, body)).encode()
        status, header = _STATUSES.get(self.fault, "200 OK"), f"content-length: {len(answer)}\r\n"
        if TOO_LONG_WORD in json.dumps(body):
            status = "400 Bad Request"
        header += f"location: {self.location}{path}\r\n"
        whole = _head(status, header) + answer
        match self.fault:
            case GuardFault.HANG:
                await reader.read()
            case GuardFault.DRIP:
                for number in range(len(whole)):
                    await _send(writer, whole[number : number + 1])
                    await asyncio.sleep(0.05)
            case GuardFault.ENDLESS_BODY:
                await _send(writer, _head(status, ""))
                while True:
                    self.num_sent += await _send(writer, b" " * (16 << 10))
            case GuardFault.ENDLESS_HEAD:
                await _send(writer, b"HTTP/1.1 200 OK\r\n")
                while True:
                    await _send(writer, b"x-more: " + b"x" * 8000 + b"\r\n")
            case GuardFault.CLOSED_AT_ONCE:
                pass
            case GuardFault.NO_HTTP:
                await _send(writer, b"SSH-2.0-OpenSSH_9.2\r\n")
            case GuardFault.CLOSED_IN_BODY:
                await _send(writer, whole[:-2])
            case _:
                await _send(writer, whole)
                return True
        return False

    def _answer(self, path: str, body: Any) -> Any:
        if self.fault is GuardFault.NO_JSON:
            return "it is fine, believe me"
        if self.fault is GuardFault.DEEP_JSON:
            return _nested(200)
        if path == "/v1/moderations" and self.dialect == "moderations":
            return self._moderation(body["input"])
        if path == "/v1/completions" and self.dialect == "shield_gemma":
            return {"choices": [self._choice(number, prompt) for number, prompt in enumerate(body["prompt"])]}
        if path == "/v1/chat/completions" and self.dialect in ("llama_guard", "qwen3_guard"):
            return self._chat(body["messages"])
        return {"error": {"message": f"there is no {path} here"}}

    def _chat(self, messages: list[dict[str, str]]) -> Any:
        names = {"user": "User", "assistant": "Agent"}
        text = _last_turn("\n\n".join(f"{names[one['role']]}: {one['content']}" for one in messages))
        is_unsafe = UNSAFE_WORD in text
        if self.fault is GuardFault.NONSENSE or NONSENSE_WORD in text:
            content = "I am sorry, I cannot help with that."
        elif self.dialect == "llama_guard":
            content = "\n\nunsafe\nS9" if is_unsafe else "\n\nsafe"
        elif is_unsafe:
            content = "Safety: Unsafe\nCategories: Violent"
        else:
            content = "Safety: Safe\nCategories: None\nRefusal: No"
        before = ["\n\n"] if self.dialect == "llama_guard" else ["Safety", ":"]
        words = ("unsafe", "safe") if self.dialect == "llama_guard" else (" Unsafe", " Safe")
        tokens = [{"token": token, "logprob": 0.0, "top_logprobs": []} for token in before]
        logprobs = None
        if self.probability is not None:
            both = [_alternative(words[0], self.probability), _alternative(words[1], 1 - self.probability)]
            logprobs = {"content": [*tokens, {**both[not is_unsafe], "top_logprobs": both}]}
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "logprobs": logprobs}]}

    def _choice(self, number: int, prompt: str) -> Any:
        question = _QUESTION.search(prompt)
        text = _last_turn(question[1]) if question else ""
        is_unsafe = UNSAFE_WORD in text and "Dangerous" in prompt
        is_nonsense = self.fault is GuardFault.NONSENSE or NONSENSE_WORD in text
        logprobs = None
        if self.probability is not None:
            likely = self.probability if "Dangerous" in prompt else 0.01
            logprobs = {"top_logprobs": [{"Yes": math.log(likely), "No": math.log(1 - likely)}]}
        said = "Maybe" if is_nonsense else "Yes" if is_unsafe else "No"
        return {"index": number, "text": said, "logprobs": logprobs}

    def _moderation(self, text: str) -> Any:
        is_unsafe = UNSAFE_WORD in text
        score = self.probability if self.probability is not None else 0.97 if is_unsafe else 0.01
        if self.fault is GuardFault.NONSENSE or NONSENSE_WORD in text:
            score = 17
        result = {
            "flagged": is_unsafe,
            "categories": {"illicit/violent": is_unsafe, "hate": False},
            "category_scores": {"illicit/violent": score, "hate": 0.001},
        }
        return {"id": "modr-1", "model": "any", "results": [result]}


def _last_turn(prompt: str) -> str:
    return [turn for turn in _TURN.split(prompt) if turn.strip()][-1]


def _alternative(token: str, probability: float) -> dict[str, Any]:
    return {"token": token, "logprob": math.log(probability)}


async def _send(writer: asyncio.StreamWriter, data: bytes) -> int:
    writer.write(data)
    await writer.drain()
    return len(data)


def _head(status: str, header: str) -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{header}\r\n".encode()


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return {"choices": value, "results": value}
