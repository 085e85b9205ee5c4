"""The choice among the servers of a system without a router of its own. Pure.

It is made in the load generator, which knows of all open requests. A router in front would make the same choice at some
cost and with older knowledge.
"""

from collections.abc import Sequence

STICKY_REQUESTS = 2
"""Open requests that the server of a conversation's last turn may have more than the least loaded one. More lets turns
wait behind each other; fewer computes their prompts again.
"""


class FrontRouter:
    """Chooses the server with the fewest open requests, or the one that had the conversation's last turn and caches it,
    if that one has hardly more.
    """

    def __init__(self, ports: Sequence[int], *, is_sticky: bool = True) -> None:
        """`is_sticky`: whether conversations stay. Without it, only open requests count."""
        self._open = dict.fromkeys(ports, 0)
        self._is_sticky = is_sticky
        self._last_port: dict[str, int] = {}
        """The server of the last turn, by conversation."""

    def opened(self, conversation: str) -> int:
        """The server that gets the next request, which is open there from now on."""
        least = min(self._open, key=self._open.__getitem__)
        port = self._last_port.get(conversation, least) if self._is_sticky else least
        if self._open[port] > self._open[least] + STICKY_REQUESTS:
            port = least
        # The next tie goes to another one: what was chosen last is the last in order.
        self._open[port] = self._open.pop(port) + 1
        self._last_port[conversation] = port
        return port

    def closed(self, port: int) -> None:
        self._open[port] -= 1
