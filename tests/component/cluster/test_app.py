"""What the deployments of the application are started with."""

from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from cluster.app import _ingress, _pool
from cluster.config.application import AppConfig, parse
from decode.deployment import DecodeWorker
from prefill.deployment import PrefillWorker

MODEL = "conf/models/baton-demo"


def environments_of(config: AppConfig) -> dict[str, dict[str, str]]:
    """The environment of the processes that read sampling parameters, by deployment."""
    deployments: dict[str, Any] = {
        "ingress": _ingress(config),
        "prefill": _pool(PrefillWorker, config, config.prefill),
        "decode": _pool(DecodeWorker, config, config.decode),
    }
    return {name: one.ray_actor_options["runtime_env"]["env_vars"] for name, one in deployments.items()}


@pytest.mark.parametrize("most", [2, 128, 20_000])
@pytest.mark.parametrize("deployment", ["ingress", "prefill", "decode"])
def test_vllm_takes_as_many_sequences_as_a_request_may_have(
    monkeypatch: pytest.MonkeyPatch, deployment: str, most: int
) -> None:
    config = parse({"model": MODEL, "ingress": {"max_sequences_per_request": most}})
    for name, value in environments_of(config)[deployment].items():
        monkeypatch.setenv(name, value)
    assert SamplingParams(n=most).n == most
    with pytest.raises(VLLMValidationError, match=f"n must be at most {most}"):
        SamplingParams(n=most + 1)
