"""One request and its answer, as ASGI exchanges them.

A client that leaves cancels the task that answers it, at whatever it is: ASGI servers only say so on `receive`. And
every answer, whoever gives it, has the same headers added.
"""

import asyncio

from starlette.types import Message, Receive, Send

Headers = list[tuple[bytes, bytes]]


class Exchange:
    def __init__(self, receive: Receive, send: Send, headers: Headers) -> None:
        """`headers`: of the answer, where it does not have them by itself."""
        self._receive = receive
        self._send = send
        self._headers = headers
        self._task = asyncio.current_task()
        self._watching: asyncio.Task[None] | None = None
        self._is_answered = self._is_told = False
        self.is_started = False
        """The answer has its status."""
        self.client_left = False

    def watch(self) -> None:
        """From when its body has been read on, the client may leave."""
        self._watching = asyncio.create_task(self._watch())

    async def receive(self) -> Message:
        """The body has been read, and is in the scope. Then comes the end, which also follows a complete answer."""
        if not self._is_told:
            self._is_told = True
            return {"type": "http.request", "body": b"", "more_body": False}
        if self._watching is not None:
            await asyncio.shield(self._watching)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.client_left:  # vLLM's code answers a cancellation with an error of its own
            return
        if message["type"] == "http.response.start":
            self.is_started = True
            message = {**message, "headers": self._with_ours(list(message.get("headers", ())))}
        elif not message.get("more_body"):
            self._is_answered = True
        await self._send(message)

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def _with_ours(self, headers: Headers) -> Headers:
        theirs = {name for name, _ in headers}
        return headers + [header for header in self._headers if header[0] not in theirs]

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass  # the end of a request that had no body
        if not self._is_answered and self._task is not None:
            self.client_left = True
            self._task.cancel()
