"""What the deployments of the application are started with."""

import subprocess
import sys
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from cluster.app import _ingress, _pool, _scheduler, build
from cluster.config.application import AppConfig, parse
from cluster.repository import REPO_ROOT
from decode.deployment import DecodeWorker
from prefill.deployment import PrefillWorker

MODEL = "conf/models/baton-demo"


SECTIONS = ("scheduler", "ingress", "prefill", "decode")


def deployments_by_section(config: AppConfig) -> dict[str, Any]:
    """Each deployment, by its section of the config."""
    deployments = (
        _scheduler(config),
        _ingress(config),
        _pool(PrefillWorker, config, config.prefill),
        _pool(DecodeWorker, config, config.decode),
    )
    return dict(zip(SECTIONS, deployments, strict=True))


def actor_options_of(config: AppConfig) -> dict[str, dict[str, Any]]:
    """What Ray is told of each deployment's replicas."""
    return {section: one.ray_actor_options for section, one in deployments_by_section(config).items()}


@pytest.mark.parametrize("most", [2, 128, 20_000])
@pytest.mark.parametrize("deployment", ["ingress", "prefill", "decode"])
def test_vllm_takes_as_many_sequences_as_a_request_may_have(
    monkeypatch: pytest.MonkeyPatch, deployment: str, most: int
) -> None:
    config = parse({"model": MODEL, "ingress": {"max_sequences_per_request": most}})
    for name, value in actor_options_of(config)[deployment]["runtime_env"]["env_vars"].items():
        monkeypatch.setenv(name, value)
    assert SamplingParams(n=most).n == most
    with pytest.raises(VLLMValidationError, match=f"n must be at most {most}"):
        SamplingParams(n=most + 1)


def test_each_section_says_which_nodes_run_its_replicas() -> None:
    def nodes(pool: str) -> dict[str, dict[str, Any]]:
        return {"label_selector": {"pool": pool}, "resources": {f"{pool}_node": 1}}

    config = parse({"model": MODEL, **{section: nodes(section) for section in SECTIONS}})
    for section, options in actor_options_of(config).items():
        assert {key: options[key] for key in nodes(section)} == nodes(section)


def test_each_section_says_how_its_replicas_are_replaced() -> None:
    said = {"ingress": (50, 70.0), "prefill": (20, 80.0), "decode": (30, 90.0)}
    config = parse(
        {
            "model": MODEL,
            **{name: {"max_surge_percent": more, "drain_s": drain} for name, (more, drain) in said.items()},
        }
    )
    for section, deployment in deployments_by_section(config).items():
        options = deployment._deployment_config
        if section != "scheduler":
            assert (options.max_surge_percent, options.graceful_shutdown_timeout_s) == said[section]


def test_without_a_choice_any_node_will_do() -> None:
    for options in actor_options_of(parse({"model": MODEL})).values():
        assert options["resources"] == {}
        assert "label_selector" not in options


def deployments_of(args: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The init args of each deployment but the ingress, by its name."""
    ingress = build({"model": MODEL, **args})
    _, cells = ingress._bound_deployment.init_args
    bound = [one._bound_deployment for applications in cells.values() for one in applications]
    return {one.name: one.init_args for one in bound}


def test_only_cell_has_deployments_without_its_name() -> None:
    deployments = deployments_of({"cells": {"names": ["a"]}})
    assert list(deployments) == ["Scheduler", "PrefillWorker", "DecodeWorker"]
    assert {arguments[-1] for arguments in deployments.values()} == {None}


def test_each_of_several_cells_has_its_own_scheduler_and_pools() -> None:
    deployments = deployments_of({"cells": {"names": ["a", "b"]}})
    kinds = ("Scheduler", "PrefillWorker", "DecodeWorker")
    assert {name: arguments[-1] for name, arguments in deployments.items()} == {
        f"{kind}-{cell}": cell for cell in "ab" for kind in kinds
    }


BUILD = """
import sys, yaml
from cluster.app import build
build(yaml.safe_load(sys.stdin)["applications"][0]["args"])
sys.exit(" ".join(sorted({"torch", "vllm"} & sys.modules.keys())) or None)
"""
LOGS_FIRST = """
import asyncio, sys
import {module} as started
def set_up_logging(**_):
    sys.exit(" ".join(sorted({{"torch", "vllm"}} & sys.modules.keys())) or None)
started.set_up_logging = set_up_logging
started.own_worker_id = lambda: "worker"
{start}
sys.exit("no logging was set up")
"""


def run(program: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], input=text, cwd=REPO_ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("file", ["local.yaml", "local-gpu.yaml"])
def test_vllm_is_not_imported_to_build_the_application(file: str) -> None:
    """It takes many seconds, before which no replica starts."""
    built = run(BUILD, (REPO_ROOT / "conf" / file).read_text())
    assert built.returncode == 0, built.stderr


@pytest.mark.parametrize(
    ("module", "start"),
    [
        ("api.deployment", "asyncio.run(started.Ingress.__init__(object(), None, None))"),
        ("cluster.worker.engine_start", "started.start_engine(None, None, None)"),
    ],
)
def test_logging_is_set_up_before_libraries_are_imported(module: str, start: str) -> None:
    """A library that configures logging while it is imported would close the file handler of Serve."""
    replica = run(LOGS_FIRST.format(module=module, start=start))
    assert replica.returncode == 0, replica.stderr
