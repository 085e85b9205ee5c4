"""Messages that NIXL agents send each other beside KV blocks: which of them vLLM's connector understands. Pure.

NIXL does not prove who sent a message. vLLM's connector parses messages in the engine's step, and a message that it
does not understand would raise an error there.
"""

import re

MAX_MESSAGE_BYTES = 1 << 20
"""Bytes of a message. A heartbeat lists the open requests of a decode worker: some thousand ids of a hundred bytes.
More lets any sender delay a step; less drops heartbeats, and with them the leases of large decode workers.
"""

_READ = re.compile(r".+:[1-9]\d{0,5}", re.DOTALL)
"""The id of a request, and the number of readers of its KV blocks."""
_HEARTBEAT = "HB:"


def is_understood(message: bytes) -> bool:
    if len(message) > MAX_MESSAGE_BYTES:
        return False
    try:
        text = message.decode()
    except UnicodeDecodeError:
        return False
    return text.startswith(_HEARTBEAT) or _READ.fullmatch(text) is not None
