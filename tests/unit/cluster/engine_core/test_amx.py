"""An engine's process may use the tiles of AMX where the processor has them, whatever the engine computes first."""

import subprocess
import sys
from pathlib import Path

import pytest

ASK = "from cluster.engine_core.amx import ask_for_tiles; ask_for_tiles();"
IS_PERMITTED = """
import ctypes
ARCH_PRCTL, ARCH_GET_XCOMP_PERM, XTILEDATA = 158, 0x1022, 18
permitted = ctypes.c_uint64()
assert ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_GET_XCOMP_PERM, ctypes.byref(permitted)) == 0
print(bool(permitted.value >> XTILEDATA & 1))
"""


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=600)
    return done.stdout.strip()


@pytest.mark.skipif("amx_tile" not in Path("/proc/cpuinfo").read_text(), reason="the processor has no AMX")
def test_process_that_asks_may_use_tiles() -> None:
    assert run(IS_PERMITTED) == "False", "a process may not by itself"
    assert run(ASK + IS_PERMITTED) == "True"


def test_asking_does_no_harm_on_any_processor() -> None:
    assert run(ASK + "print('lives')") == "lives"
