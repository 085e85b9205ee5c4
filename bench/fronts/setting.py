"""What all compared systems have in common: the model, the engine arguments and the environment."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.fronts import census
from bench.fronts.pace import PACE_FILE_VARIABLE

REPO_ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
_EXECUTOR = "bench.fronts.executor.PacedExecutor"
_THIN = {
    "load_format": "dummy",
    "dtype": "float32",
    "hf_overrides": {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1},
}
"""The demo model with one layer and random weights: a token takes a quarter of its time on a CPU without AVX-512, so
that most of a paced step is slept.
"""


@dataclass(frozen=True)
class Setting:
    folder: Path
    """The folder of logs, rendered configs and the router's environment."""
    conf: dict[str, Any]
    """A Serve config of Baton with one prefill and one decode worker, which the other systems are made after."""
    is_thin: bool = False
    """Whether engines compute `_THIN` instead of the model."""

    @property
    def args(self) -> dict[str, Any]:
        args: dict[str, Any] = self.conf["applications"][0]["args"]
        return args

    @property
    def model(self) -> str:
        return str(REPO_ROOT / self.args["model"])

    @property
    def engine(self) -> dict[str, Any]:
        """vLLM engine arguments."""
        thin = _THIN if self.is_thin else {}
        return {**self.args["engine"], **thin, "distributed_executor_backend": _EXECUTOR}

    @property
    def paced_conf(self) -> dict[str, Any]:
        """The Serve config with the executor that keeps the pace, the thin model if asked for, and no keys; else as it
        is.
        """
        application = self.conf["applications"][0]
        open_to_all = {"identity": {"required": False}, "admin": {"key_required": False}}
        args = {**self.args, "engine": self.engine, **open_to_all}
        return {**self.conf, "applications": [{**application, "args": args}]}

    @property
    def pace_file(self) -> Path:
        return self.folder / "pace"

    def environment(self, system: str, part: str) -> dict[str, str]:
        """Marks, and what Baton sets by itself for its workers."""
        return {
            **census.marks(system, part),
            PACE_FILE_VARIABLE: str(self.pace_file),
            "PYTHONPATH": str(REPO_ROOT),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "UCX_TLS": "tcp,cma",
            "UCX_RCACHE_MAX_UNRELEASED": "1024",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
            "VLLM_LOGGING_LEVEL": self.args["log_level"],
            "NIXL_LOG_LEVEL": "WARN",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def log(self, system: str, part: str) -> Path:
        return self.folder / "logs" / f"{system} {part}.log".replace(" ", "-")
