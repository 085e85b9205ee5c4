"""One request and its answer, as an ASGI server exchanges them with the application.

An ASGI server reports only through `receive` that a client has left. The exchange therefore watches `receive`, and then
cancels the task that answers the client. It also adds the same headers to every answer.

The session of a cancelled task ends as aborted (router/session/session.py). A stored response goes on without its
client (api/responses/turn.py).
"""

import asyncio

from starlette.types import Message, Receive, Send

from api.wire.response_headers import PROCESSED_IN

Headers = list[tuple[bytes, bytes]]
EXCHANGE = "baton.exchange"
"""Key in the ASGI scope of a request. The value is its `Exchange`."""


class Exchange:
    def __init__(self, receive: Receive, send: Send, headers: Headers) -> None:
        """`headers` are added to an answer that does not have them."""
        self._receive = receive
        self._send = send
        self._headers = headers
        self._began_at = asyncio.get_running_loop().time()
        self._task = asyncio.current_task()
        self._watching: asyncio.Task[None] | None = None
        self._is_answered = self._is_body_given = False
        self.is_started = False
        """Whether the answer has begun, with its status and headers."""
        self.client_left = False

    def add_headers(self, headers: dict[str, str]) -> None:
        """Add these to the answer, if it has not begun and does not have them. The last ones of a name count."""
        added = {name.encode(): value.encode() for name, value in headers.items()}
        self._headers = [header for header in self._headers if header[0] not in added] + list(added.items())

    def watch(self) -> None:
        """Starts to watch for a client that leaves. The body of the request must have been read."""
        self._watching = asyncio.create_task(self._watch())

    async def receive(self) -> Message:
        """ASGI's `receive` for the application. The first message has an empty body, because the body has been read and
        is in the scope. The second message is the disconnect, which also follows a complete answer.
        """
        if not self._is_body_given:
            self._is_body_given = True
            return {"type": "http.request", "body": b"", "more_body": False}
        if self._watching is not None:
            await asyncio.shield(self._watching)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.client_left:  # vLLM answers a cancelled request with an error
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
        passed_ms = round(1000 * (asyncio.get_running_loop().time() - self._began_at))
        ours = [*self._headers, (PROCESSED_IN.encode(), b"%d" % passed_ms)]
        return headers + [header for header in ours if header[0] not in theirs]

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass  # the empty body of a request without a body
        if not self._is_answered and self._task is not None:
            self.client_left = True
            self._task.cancel()
