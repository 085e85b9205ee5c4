"""The NIXL connector of the engines that are not Baton's: vLLM's own.

Importing Baton's makes the engine's process behave on a shared host (`kvtransfer/connector.py`). It also has the engine
ask others on connections that prove themselves, which only Baton's engines answer. So vLLM's own connections come back.
Baton's connector itself counts no pull without a deadline, which only Baton's requests have.
"""

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlPullConnector, base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.utils import zmq_ctx

import kvtransfer.connector  # noqa: F401

base_worker.zmq_ctx = zmq_ctx


class NixlConnector(NixlPullConnector):
    """vLLM's connector, under the name that vLLM checks for."""
