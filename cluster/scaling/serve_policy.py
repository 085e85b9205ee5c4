"""ServePolicy: Serve's application-level autoscaling policy. It has both pools as large as PoolScaler says.

Serve calls the policy in its controller's event loop, several times a second. So the policy only returns what its
thread has read last. While nothing new can be read, the pools keep their sizes.
"""

import logging
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from ray.serve.config import AutoscalingContext

from cluster.scaling.published_targets import Target, published

logger = logging.getLogger("ray.serve")  # the controller writes this logger alone

READ_EVERY_S = 1.0
"""Time between two looks at the published targets, in seconds. Longer follows them later; shorter asks Ray's key-value
store more often.
"""
REMIND_EVERY_S = 60.0
"""Time between two lines of the log that say that the policy is missing, in seconds. Longer hides them in other lines;
shorter fills the log.
"""

Decision = tuple[dict[Any, int], dict[Any, dict[str, Any]]]


class ServePolicy:
    """`autoscaling_policy: {policy_function: "cluster.scaling.serve_policy:ServePolicy"}` of a Serve application."""

    def __init__(self) -> None:
        self._first_told_at: dict[str, float] = {}
        """When the first target that was read of each deployment was told: that of an earlier PoolScaler, perhaps."""
        self._targets: dict[str, int] = {}
        """Replicas by deployment, as read last."""
        self.deployments: list[str] = []
        """Those that Serve asks about."""
        self._thread: threading.Thread | None = None

    def __call__(self, contexts: dict[Any, AutoscalingContext]) -> Decision:
        """Replicas by the id of each deployment that has a target. The others keep their replicas."""
        self.deployments = [known.name for known in contexts]
        if self._thread is None and contexts:
            application, is_dropped = str(next(iter(contexts)).app_name), threading.Event()
            weakref.finalize(self, is_dropped.set)
            arguments = (weakref.ref(self), application, is_dropped)
            self._thread = threading.Thread(
                target=_read_forever, args=arguments, name="baton-pool-targets", daemon=True
            )
            self._thread.start()
        return {known: self._targets[known.name] for known in contexts if known.name in self._targets}, {}

    def take(self, targets: Mapping[str, Target]) -> None:
        """Take what was read. A target counts once it was told again: before, it may be of an earlier deployment."""
        for deployment, target in targets.items():
            if self._first_told_at.setdefault(deployment, target.told_at) != target.told_at:
                self._targets[deployment] = target.replicas


def _read_forever(policy: "weakref.ref[ServePolicy]", application: str, is_dropped: threading.Event) -> None:
    """Read the targets until Serve has dropped the policy."""
    while True:
        if (there := policy()) is not None:
            try:
                there.take(published(application, there.deployments))
            except Exception:  # the store is away, for a while
                logger.debug("the targets of application %s cannot be read", application, exc_info=True)
        del there
        if is_dropped.wait(READ_EVERY_S):
            return


_reminded_at = float("-inf")


def keep_size(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """The policy of each pool for itself, which keeps its size: Serve's own would take a pool down to its least size,
    because no request of Baton goes through Serve. It counts only if the application has no policy.
    """
    global _reminded_at
    if time.monotonic() - _reminded_at > REMIND_EVERY_S:
        _reminded_at = time.monotonic()
        logger.error(
            "application %s has the section `scaling` and no policy, so its pools keep their sizes: give the "
            'application `autoscaling_policy: {policy_function: "cluster.scaling.serve_policy:ServePolicy"}`',
            context.app_name,
        )
    return context.target_num_replicas, {}
