"""Permission for an engine's process to use the tile registers of x86 processors with AMX.

Linux gives it to a process that asks (arch_prctl, ARCH_REQ_XCOMP_PERM), and a process without it dies of an illegal
instruction. PyTorch asks with its first large matrix product. vLLM's attention on CPUs uses the tiles without asking:
an engine whose first prompt has one token would die of it.
"""

import torch


def ask_for_tiles() -> None:
    """No-op on processors without AMX."""
    torch.cpu._init_amx()
