"""Programs that start engines, as processes of their own, each with an environment of its own."""

import os
import runpy
import subprocess
import sys

from cluster.repository import REPO_ROOT
from cluster.uncollected import uncollected


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
        [sys.executable, "-m", __name__, f"tests.engines.{module}", *arguments],
        env=os.environ | variables | environment,
        cwd=REPO_ROOT,
        timeout=timeout_s,
        check=check,
        stderr=None if check else subprocess.PIPE,
        text=True,
    )


if __name__ == "__main__":
    with uncollected():
        import cluster.engine.engine  # noqa: F401
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
