"""Permission for an engine's process to use the tile registers of x86 processors with AMX.

Linux gives it to a process that asks, and a process without it dies of an illegal instruction (arch_prctl in the
kernel's arch/x86/xstate.rst). PyTorch asks with its first large matrix product. vLLM's attention on CPUs uses the tiles
without asking: an engine whose first prompt has one token would die of it.
"""

import ctypes
import platform
from typing import Final

_ARCH_PRCTL: Final = 158
"""Number of the system call on x86-64."""
_ARCH_REQ_XCOMP_PERM: Final = 0x1023
_XTILEDATA: Final = 18
"""The state component of the tiles."""


def ask_for_tiles() -> None:
    """No-op on other processors and older kernels, where the system call fails."""
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
