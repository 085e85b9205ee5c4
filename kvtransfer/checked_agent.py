"""CheckedAgent: vLLM's NIXL agent, without the messages on which vLLM's connector would raise, and with what NIXL says
of each read that has ended.
"""

from typing import Any, cast

from cluster.network.strangers import STRANGERS
from kvtransfer.notifications import is_understood
from kvtransfer.pull_times import Telemetry


class CheckedAgent:
    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._told: list[tuple[object, Telemetry | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        notifications = self._agent.get_new_notifs()
        for messages in notifications.values():
            understood = [message for message in messages if is_understood(message)]
            for _ in range(len(messages) - len(understood)):
                STRANGERS.count("nixl_notifications", "not_understood")
            messages[:] = understood
        return cast(dict[str, list[bytes]], notifications)

    def get_xfer_telemetry(self, handle: Any) -> Any:
        telemetry = self._agent.get_xfer_telemetry(handle)
        self._told.append((handle, telemetry))
        return telemetry

    def take_told(self) -> list[tuple[object, Telemetry | None]]:
        """The reads that NIXL was asked about since the last call, with its answers."""
        told, self._told = self._told, []
        return told
