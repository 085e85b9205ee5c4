"""The NIXL connector of the engines that are not Baton's: vLLM's own.

Importing Baton's makes the engine's process behave on a shared host (`kvtransfer/connector.py`). Baton's itself counts
no pull without a deadline, which only Baton's requests have.
"""

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlPullConnector

import kvtransfer.connector  # noqa: F401


class NixlConnector(NixlPullConnector):
    """vLLM's connector, under the name that vLLM checks for."""
