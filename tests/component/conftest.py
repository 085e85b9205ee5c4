"""The HTTP surface in one process: FastAPI and vLLM's front half, no Ray cluster, no engine."""

import os
import warnings

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using extra keyword arguments on `Field` is deprecated")  # ray.serve
    warnings.filterwarnings("ignore", message="`torch.jit.script", category=DeprecationWarning)  # torch inside vLLM
    import api.app  # noqa: F401
