"""An engine's process may use the tiles of AMX where the processor has them, whatever the engine computes first."""

import subprocess
import sys

import pytest
import torch

ASK = "from cluster.engine_core.amx import ask_for_tiles; ask_for_tiles();"
PERMITTED = """
import ctypes
ARCH_PRCTL, ARCH_GET_XCOMP_PERM, XTILEDATA = 158, 0x1022, 18
permitted = ctypes.c_uint64()
assert ctypes.CDLL(None, use_errno=True).syscall(ARCH_PRCTL, ARCH_GET_XCOMP_PERM, ctypes.byref(permitted)) == 0
print(bool(permitted.value >> XTILEDATA & 1))
"""


def tiles_are_permitted(*, asks: bool) -> bool:
    script = (ASK if asks else "") + PERMITTED
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() == "True"


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="the processor has no AMX")
def test_process_that_asks_may_use_tiles() -> None:
    assert not tiles_are_permitted(asks=False), "nothing asks on its own"
    assert tiles_are_permitted(asks=True)


def test_asking_does_no_harm_on_any_processor() -> None:
    subprocess.run([sys.executable, "-c", ASK], check=True, timeout=60)
