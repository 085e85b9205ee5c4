"""WebSockets whose messages are compared with OpenAI's document as they pass."""

import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.conformance.document import SOCKET_EVENT
from tests.conformance.watch import RECORD, Record

PATH = "/v1/responses"


async def watched_connection(port: int, record: Record = RECORD, **options: Any) -> ClientConnection:
    """A WebSocket of a service on this machine. Raises InvalidStatus if the service refuses it."""

    class Watched(ClientConnection):
        async def recv(self, decode: bool | None = None) -> Any:
            message = await super().recv(decode)
            record.compare_event(f"WEBSOCKET {PATH}", SOCKET_EVENT, json.loads(message))
            return message

    options = {"proxy": None, "compression": None, "create_connection": Watched} | options
    return await connect(f"ws://127.0.0.1:{port}{PATH}", **options)
