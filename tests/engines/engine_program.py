"""Programs that start engines, as processes of their own: vLLM spawns its engine cores, which import the program."""

import os
import subprocess
import sys

from cluster.repository import REPO_ROOT


def run(
    module: str, *arguments: str, timeout_s: float = 280.0, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a module of this package. `environment` adds variables.

    Raises:
        subprocess.CalledProcessError: the program has failed, and `check` is set.
        subprocess.TimeoutExpired: it took longer than `timeout_s`.
    """
    variables = {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(REPO_ROOT),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return subprocess.run(
        [sys.executable, "-m", f"tests.engines.{module}", *arguments],
        env=os.environ | variables | environment,
        cwd=REPO_ROOT,
        timeout=timeout_s,
        check=check,
        stderr=None if check else subprocess.PIPE,
        text=True,
    )
