"""A client that leaves cancels the task that answers it, at whatever it is. ASGI servers only say so on `receive`."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class CancelledByDisconnect:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        exchange = _Exchange(receive, send, task)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if not exchange.client_left:
                raise
            task.uncancel()
        finally:
            exchange.close()


class _Exchange:
    """One request and its answer."""

    def __init__(self, receive: Receive, send: Send, task: asyncio.Task[None]) -> None:
        self._receive = receive
        self._send = send
        self._task = task
        self._watching: asyncio.Task[None] | None = None
        self._is_answered = False
        self.client_left = False

    async def receive(self) -> Message:
        if self._watching is not None:
            await asyncio.shield(self._watching)
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.disconnect":  # while it was sending its request
            self.client_left = True
            raise asyncio.CancelledError
        if message["type"] == "http.request" and not message.get("more_body"):
            self._watching = asyncio.create_task(self._watch())
        return message

    async def send(self, message: Message) -> None:
        if self.client_left:  # vLLM's code answers a cancellation with an error of its own
            return
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._is_answered = True
        await self._send(message)

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        await self._receive()  # the body is read: the next message is the end, which also follows a complete answer
        if not self._is_answered:
            self.client_left = True
            self._task.cancel()
