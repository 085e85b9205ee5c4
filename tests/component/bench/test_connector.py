"""Engines that are not Baton's hand over as vLLM ships it."""

import subprocess
import sys

from cluster.repository import REPO_ROOT

ASKS = """
import bench.fronts.connector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker, utils
print(base_worker.zmq_ctx is utils.zmq_ctx)
"""


def test_engines_of_others_ask_each_other_as_vllm_does() -> None:
    """In a process of its own: the import changes vLLM for the whole process."""
    ran = subprocess.run([sys.executable, "-c", ASKS], cwd=REPO_ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split()[-1] == "True"
