"""Messages that NIXL agents send each other beside KV blocks: which of them vLLM's connector understands. Pure.

NIXL does not prove who sent a message, and vLLM's connector parses them in the engine's step: one that it does not
understand would raise there.
"""

import re

MAX_MESSAGE_BYTES = 1 << 20
"""A heartbeat lists the requests that a decode worker has open: some thousand ids of a hundred bytes. More lets whoever
sends it hold up a step, less drops heartbeats, and with them the leases of large decode workers.
"""

_READ = re.compile(r".+:[1-9]\d{0,5}", re.DOTALL)
"""A request's id, and how many readers its KV blocks have."""
_HEARTBEAT = "HB:"


def is_understood(message: bytes) -> bool:
    if len(message) > MAX_MESSAGE_BYTES:
        return False
    try:
        text = message.decode()
    except UnicodeDecodeError:
        return False
    return text.startswith(_HEARTBEAT) or _READ.fullmatch(text) is not None
