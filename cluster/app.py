"""The composition root: builds the Serve application from the `args:` of a Serve config. `serve run conf/local.yaml`
calls `build`.
"""

from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import LoggingConfig

from api.deployment import Ingress
from cluster.config.application import AppConfig, parse
from cluster.config.node_choice import NodeChoice
from cluster.config.pools import PoolConfig
from cluster.config.scaling import PoolBounds
from cluster.engine_checks.arguments import check_arguments
from cluster.messages.ids import CellName, Pool
from cluster.observability.logging import FORMAT_VARIABLE, LEVEL_VARIABLE
from cluster.repository import resolve_model
from cluster.scaling.deployment import PoolScaler
from cluster.scaling.serve_policy import keep_size
from cluster.scaling.serve_view import ScaledPool
from decode.deployment import DecodeWorker
from prefill.deployment import PrefillWorker
from router.deployment import Scheduler

_QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)
"""Serve's logging in every deployment. Serve would log each call between deployments, and each scrape of the metrics is
such a call. No client calls through Serve.
"""

_HEALTH_CHECK_PERIOD_S = 2.0
"""Time between two health checks of a replica, in seconds. Serve replaces a replica after three failed checks in a row.
Longer replaces dead replicas later; shorter costs every replica more calls.
"""

_STOP_POLL_S = 0.1
"""Time for which Serve sleeps before it tells a replica to end, and between two looks whether calls to it run, in
seconds. It counts as part of the replica's time to end: Serve's own 2 s would be all the time in which a worker hands
its requests over (`HAND_BACK_S`). Shorter costs CPU at the end only.
"""

_ENGINE_START_S = 3600
"""Time that an engine may take to load its model, in seconds, unless `env` of the pool sets
VLLM_ENGINE_READY_TIMEOUT_S. Longer leaves an engine that hangs while it starts for longer; shorter, as vLLM's own 600,
ends the start of a large model from a slow store, again and again.
"""


def build(args: dict[str, Any]) -> Application:
    """Build the application. Raises ValueError for args that cluster/config refuses, and for engine arguments that vLLM
    does not have.
    """
    config = parse(args)
    check_arguments(config)
    return _ingress(config).bind(config, {cell: _cell(config.on_nodes_of(cell), cell) for cell in config.cells.names})


def _cell(config: AppConfig, cell: CellName) -> list[Application]:
    """The deployments of a cell: its Scheduler and its pools. The names of deployments have the name of the cell if
    there are several.
    """
    of_several = cell if config.cells.are_several else None

    def of_cell(name: str) -> str:
        return name if of_several is None else f"{name}-{of_several}"

    def bound(deployment: serve.Deployment, *arguments: object) -> Application:
        named = deployment.options(name=of_cell(deployment.name))
        return named.bind(*arguments, config.internal_network, of_several)

    scaling = config.scaling
    prefill = _pool(PrefillWorker, config, config.prefill, scaling.prefill if scaling else None)
    decode = _pool(DecodeWorker, config, config.decode, scaling.decode if scaling else None)
    deployments = [
        bound(_scheduler(config), config.slo, config.scheduler),
        bound(prefill, config.pool(config.prefill)),
        bound(decode, config.pool(config.decode)),
    ]
    if scaling is not None:
        scaled = {
            Pool.PREFILL: ScaledPool(of_cell(PrefillWorker.__name__), config.prefill.label_selector),
            Pool.DECODE: ScaledPool(of_cell(DecodeWorker.__name__), config.decode.label_selector),
        }
        deployments.append(bound(_scaler(config), scaling, scaled))
    return deployments


def _scheduler(config: AppConfig) -> serve.Deployment:
    return serve.deployment(Scheduler).options(
        logging_config=_QUIET,
        health_check_period_s=_HEALTH_CHECK_PERIOD_S,
        ray_actor_options={**_on_nodes(config.scheduler, _process_environment(config)), "num_cpus": 0.1},
    )


def _ingress(config: AppConfig) -> serve.Deployment:
    environment = _process_environment(config)
    # The ingress renders and detokenizes. It must not use a GPU that a worker has.
    environment |= {"VLLM_TARGET_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return serve.deployment(Ingress).options(
        num_replicas=config.ingress.replicas,
        max_surge_percent=config.ingress.max_surge_percent,
        graceful_shutdown_timeout_s=config.ingress.drain_s,
        graceful_shutdown_wait_loop_s=_STOP_POLL_S,
        health_check_period_s=_HEALTH_CHECK_PERIOD_S,
        logging_config=_QUIET,
        ray_actor_options={**_on_nodes(config.ingress, environment), "num_cpus": config.ingress.cpus},
    )


def _scaler(config: AppConfig) -> serve.Deployment:
    return serve.deployment(PoolScaler).options(
        logging_config=_QUIET,
        health_check_period_s=_HEALTH_CHECK_PERIOD_S,
        ray_actor_options={**_on_nodes(config.scheduler, _process_environment(config)), "num_cpus": 0.0},
    )


def _pool(worker: type, config: AppConfig, pool: PoolConfig, bounds: PoolBounds | None = None) -> serve.Deployment:
    """`bounds`: None for a pool that keeps its `replicas`."""
    options = _on_nodes(pool, _process_environment(config) | pool.env)
    options |= {"num_cpus": pool.cpus, "num_gpus": pool.gpus}
    if pool.accelerator_type is not None:
        options["accelerator_type"] = pool.accelerator_type
    return serve.deployment(worker).options(
        **_size(pool.replicas, bounds),
        health_check_period_s=_HEALTH_CHECK_PERIOD_S,
        max_surge_percent=pool.max_surge_percent,
        graceful_shutdown_timeout_s=pool.drain_s,
        graceful_shutdown_wait_loop_s=_STOP_POLL_S,
        logging_config=_QUIET,
        ray_actor_options=options,
    )


def _size(replicas: int, bounds: PoolBounds | None) -> dict[str, Any]:
    """Serve's options for the size of a pool. Its delays and factors are off: the policy decides alone."""
    if bounds is None:
        return {"num_replicas": replicas}
    autoscaling = AutoscalingConfig(
        min_replicas=bounds.min,
        max_replicas=bounds.max,
        initial_replicas=replicas,
        upscale_delay_s=0.0,
        downscale_delay_s=0.0,
        downscale_to_zero_delay_s=0.0,
        policy=AutoscalingPolicy(policy_function=keep_size),
    )
    return {"autoscaling_config": autoscaling}


def _on_nodes(choice: NodeChoice, environment: dict[str, str]) -> dict[str, Any]:
    """Ray's options for replicas on some nodes, with an environment."""
    options: dict[str, Any] = {"resources": choice.resources, "runtime_env": {"env_vars": environment}}
    if choice.label_selector:
        options["label_selector"] = choice.label_selector
    return options


def _process_environment(config: AppConfig) -> dict[str, str]:
    environment = {
        LEVEL_VARIABLE: config.log_level,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_MAX_N_SEQUENCES": str(config.ingress.max_sequences_per_request),  # vLLM checks `n` in each process
        "VLLM_ENGINE_READY_TIMEOUT_S": str(_ENGINE_START_S),  # vLLM reads it when it is imported
        "GRPC_ENABLE_FORK_SUPPORT": "0",  # who forks here runs another program at once; gRPC would log each time
        "NIXL_LOG_LEVEL": "WARN",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # an engine with the executor `uni` needs no extra process
        "TORCH_LOGS": "-torch._library",
        # vLLM uses functions that torch deprecates
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }
    if config.log_format is not None:
        environment[FORMAT_VARIABLE] = config.log_format
    if Path(resolve_model(config.model)).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    return environment
