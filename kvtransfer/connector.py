"""The NIXL connector that the engines load (`kv_connector_module_path`), in every process of an engine.

It is vLLM's own pull connector. Importing this module additionally makes the engine's process behave on a shared host:
the process ends with the worker that owns it, NIXL's progress thread sleeps between polls instead of spinning on a core
(CPU only: on GPU nodes the spin is worth a core), and the process is not pinned to the machine's last core.
"""

import ctypes
import signal
import sys
from typing import Any

import nixl._api
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlPullConnector
from vllm.platforms import current_platform

PROGRESS_THREAD_DELAY_US = 100
"""Pause between polls: idle CPU falls from 95 % of a core to 2 %; adds at most this to each transfer step."""

_PR_SET_PDEATHSIG = 1


class NixlConnector(NixlPullConnector):
    """Named as vLLM's own, so that its checks for the connector's name hold."""


class _PatientBindings:
    """NIXL's bindings, with a progress-thread delay that its Python API hard-codes to zero."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def nixlAgent(self, name: str, config: Any) -> Any:  # noqa: N802
        config.pthrDelay = PROGRESS_THREAD_DELAY_US
        return self._bindings.nixlAgent(name, config)


def _end_with_parent() -> None:
    """An engine core whose worker was SIGKILLed would keep its memory and port."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _share_the_cpu() -> None:
    agent_module: Any = sys.modules[nixl._api.nixl_agent.__module__]
    if not isinstance(agent_module.nixlBind, _PatientBindings):
        agent_module.nixlBind = _PatientBindings(agent_module.nixlBind)
    # The connector pins its process to the last core of each NUMA node that it discovers.
    type(current_platform).discover_numa_topology = classmethod(lambda cls: [])


_end_with_parent()
if current_platform.is_cpu():
    _share_the_cpu()
