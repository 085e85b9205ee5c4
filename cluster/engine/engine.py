"""The one adapter to vLLM's engine: an in-process AsyncLLM that takes token ids and gives token deltas.

The ingress renders and parses text: prompts arrive as token ids and outputs leave as token ids, so engines detokenize
only where a stop string must end a sequence. The ingress rebuilds vLLM's own outputs from the deltas.
"""

import logging
import os
import uuid

import msgspec
from vllm import envs
from vllm.config import KVEventsConfig, KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.version import __version__ as vllm_version

from cluster.config.pools import DEFAULT_BLOCK_SIZE, PoolConfig
from cluster.engine.block_hashes import use_fixed_seed
from cluster.engine.environment import environment_of, reserve_port, transport_of
from cluster.engine.generations import EngineGenerations
from cluster.engine.kv_event_feed import KvEventSockets
from cluster.engine.piped_tokens import TokenPipeSocket
from cluster.engine.port import EngineHooks
from cluster.engine.prefills import EnginePrefills
from cluster.engine.probe_prompts import EngineProbes
from cluster.engine.request_runner import RequestRunner
from cluster.engine.sampling_params import encode_sampling_params
from cluster.engine.shape import kind_of, kv_format_of, shape_of
from cluster.engine.statistics.engine_metrics import EngineMetrics
from cluster.engine.step_stats import EngineSteps
from cluster.engine.token_tap import TapHooks, TokenEngine, TokenTap
from cluster.engine_checks.resolved import refusal
from cluster.engine_core import first_import
from cluster.engine_core.engine_hints import AWAIT
from cluster.errors import EngineLost, ServingError, WorkerUnreachable
from cluster.importing import spawned_processes_import
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import Pool, RequestId, WorkerId
from cluster.messages.reports import StepSample, WorkerLoad
from cluster.messages.retention import ToolWait
from cluster.metrics.engines import UNCLAIMED_TOKENS
from cluster.network.interface import Interface
from cluster.repository import resolve_model
from cluster.step_stream.buffer import TokenBuffer
from kvtransfer import forgetting, verify
from kvtransfer.handoff import PulledBlocks
from kvtransfer.lease_terms import LeaseEnd, LeaseId
from kvtransfer.tiers.connector_arguments import kv_transfer_arguments
from kvtransfer.tiers.shared_memory import named_while_starting
from kvtransfer.transport.topology import Device

logger = logging.getLogger("baton.engine")


class Engine:
    """One vLLM engine of a pool: the `WorkerEngine` of cluster/engine/port.py. Starting it takes seconds to minutes and
    blocks.
    """

    def __init__(self, pool: Pool, config: PoolConfig, *, worker: WorkerId, rank: int, interface: Interface) -> None:
        self._worker = worker
        self._hooks: EngineHooks | None = None
        self._has_lost_pipe = False
        self.transport = transport_of(config, _device(), interface)
        self._side_channel = reserve_port(interface.host)
        address = self._side_channel.getsockname()
        os.environ.update(environment_of(config, self.transport, _device(), rank, address))
        use_fixed_seed()
        engine_id = str(uuid.uuid4())
        kind = kind_of(pool, config.engine, *_names(config))
        self.kv_events = KvEventSockets()
        self._pipe = TokenPipeSocket()
        self._steps = EngineSteps(pool, self._on_ended_leases)
        with named_while_starting(engine_id), spawned_processes_import(first_import.__name__):
            arguments = _arguments(pool, config, engine_id, kind, self.kv_events, self._pipe)
            resolved = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
            _require(resolved, config)
            self._llm = TokenEngine.from_vllm_config(
                resolved,
                stat_loggers=[lambda *_: self._steps, EngineMetrics],
                enable_log_requests=arguments.enable_log_requests,
            )
        # The ingress has tried each constraint. vLLM would try it again here, between the tokens of all requests.
        self._llm.input_processor.structured_outputs_config = None
        self._tap = TokenTap.adopt(self._llm)
        _require(self._llm.vllm_config, config)
        self.shape = shape_of(self._llm.vllm_config, kind)
        model = self._llm.model_config
        max_model_len = int(model.max_model_len)
        self._runner = RequestRunner(self._llm, self._tap, worker, config.max_ongoing_requests)
        self.prefills = EnginePrefills(self._runner, max_model_len)
        self.generations = EngineGenerations(self._runner, self._steps.pulls)
        self.probes = EngineProbes(
            self.shape, max_model_len, vocab_size=int(model.get_vocab_size()), transfers=self._steps.transfers
        )
        envs.enable_envs_cache()  # vLLM reads its environment for every request and output

    def attach(self, hooks: EngineHooks) -> None:
        self._hooks = hooks
        self._tap.attach(
            TapHooks(
                on_prompt=hooks.on_prompt,
                on_step=hooks.on_step,
                on_orphan=self.prefills.reap_orphan,
                translated=self._runner.translated_while_running,
            )
        )
        self._pipe.read(self._tap.take_piped, self._on_lost_pipe)

    async def warm_up(self) -> None:
        """Ask the engine for the format of its KV blocks, and have vLLM compile what it otherwise compiles with the
        first request for log-probabilities, which would delay all other requests for seconds. Raises ServingError.
        """
        (digest, layout, backend), *_ = await self._runner.call("baton_kv_format")
        kv_format = kv_format_of(self._llm.vllm_config, digest, layout, backend)
        self.shape = msgspec.structs.replace(self.shape, kv_format=kv_format)
        params = encode_sampling_params(SamplingParams(temperature=0.0, max_tokens=1, logprobs=verify.NUM_TOP))
        request = GenerateRequest(request_id=RequestId("warm-up"), prompt_token_ids=[0], sampling_params=params)
        buffer = TokenBuffer(1)
        await self.generations.start(request, None, buffer)
        while await buffer.next():
            pass
        UNCLAIMED_TOKENS.labels("warm-up").inc(buffer.num_put)
        self._steps.take_samples()  # no other step takes so long

    def load(self) -> WorkerLoad:
        return msgspec.structs.replace(self._steps.load, num_open=self._runner.num_open)

    @property
    def open_requests(self) -> list[RequestId]:
        return self._runner.open_requests

    def take_samples(self) -> list[StepSample]:
        return self._steps.take_samples()

    async def check_health(self) -> None:
        """Raise EngineDeadError when the engine core or its tokens are gone. The worker cannot recover from it."""
        if self._has_lost_pipe:
            raise EngineDeadError
        await self._llm.check_health()

    async def answer(self) -> None:
        await self._llm.engine_core.get_supported_tasks_async()

    async def give_up_running(self) -> None:
        await self._runner.fail_all(EngineLost(f"the engine of worker {self._worker} hangs", self._worker))

    async def hand_back_running(self) -> None:
        await self._runner.fail_all(WorkerUnreachable(f"worker {self._worker} leaves", self._worker))

    async def forget(self, blocks: PulledBlocks) -> None:
        """Raises ServingError if it is not known which blocks these are."""
        if not await self._runner.call_core(forgetting.FORGET, blocks.lender, blocks.lease):
            raise ServingError(f"worker {self._worker} does not know which blocks came from {blocks.lender}")

    async def forget_prefixes(self) -> None:
        """Raises ServingError."""
        await self._runner.call_core(forgetting.FORGET, None, None)

    async def await_tools(self, wait: ToolWait) -> None:
        """Raises ServingError."""
        await self._runner.call_core(AWAIT, wait.mark, wait.tools)

    async def drained(self) -> None:
        await self._tap.idle()

    def shutdown(self) -> None:
        self._llm.shutdown()
        self.kv_events.close()

    def _on_lost_pipe(self) -> None:
        self._has_lost_pipe = True
        self._tap.propagate_error(EngineDeadError())

    def _on_ended_leases(self, ended: list[tuple[LeaseId, LeaseEnd]]) -> None:
        if self._hooks is not None:
            self._hooks.on_ended_leases(ended)


def _arguments(
    pool: Pool, config: PoolConfig, engine_id: str, kind: str, kv_events: KvEventSockets, pipe: TokenPipeSocket
) -> AsyncEngineArgs:
    transfer = kv_transfer_arguments(pool, config, _device(), engine_id, kind, pipe.path)
    return AsyncEngineArgs(
        **{
            **config.engine,
            "model": resolve_model(config.engine["model"]),
            "disable_log_stats": False,
            "kv_transfer_config": KVTransferConfig(**transfer),
            "kv_events_config": KVEventsConfig(**kv_events.arguments),
            "worker_extension_cls": "kvtransfer.connector.LeaseCalls",
            "scheduler_cls": "cluster.engine_scheduler.deadline_scheduler.deadline_scheduler",
            "scheduling_policy": "priority",
        }
    )


def _require(resolved: VllmConfig, config: PoolConfig) -> None:
    """Raises ValueError if an engine cannot serve."""
    if why := refusal(resolved, config.engine.get("block_size", DEFAULT_BLOCK_SIZE)):
        raise ValueError(f"this engine cannot work in Baton: {why} (docs/models.md)")


def _device() -> Device:
    return Device.CPU if current_platform.is_cpu() else Device.CUDA


def _names(config: PoolConfig) -> tuple[str, str, str]:
    """What an engine's speed depends on, beside how it is configured."""
    is_cpu = current_platform.is_cpu()
    device = f"cpu-x{config.cpu_threads}" if is_cpu else str(current_platform.get_device_name())
    return config.engine["model"], device, f"vllm-{vllm_version}"
