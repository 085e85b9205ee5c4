"""vLLM's scheduler as an engine's core has it, and steps without a model: each step's output is made up."""

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from cluster.engine_core.engine_hints import NO_DEADLINE, extra_args
from cluster.engine_core.retention_log import RetentionLog
from cluster.engine_core.step_samples import StepSampler
from cluster.engine_scheduler.deadline_scheduler import AsyncDeadlineScheduler, DeadlineScheduler
from cluster.engine_scheduler.prompt_budget import PromptBudget
from cluster.repository import REPO_ROOT
from router.prediction.long_steps import LONG_OF_TPOT
from router.prediction.step_chunk import LEAST_CHUNK, LEAST_OF_TPOT, StepBound
from router.prediction.step_model import StepModel, prompt_attention

BLOCK, MOST, CHUNK, SLOTS = 16, 1024, 64, 16
"""Tokens of a KV block, of the longest step, and of prompts beside one decode with the objective TPOT_S; and the most
requests that run.
"""
TPOT_S = 0.01656 / LEAST_OF_TPOT
TIMES = StepModel(
    fixed_s=0.01, token_s=1e-4, knee_tokens=CHUNK, beyond_knee_s=0.0, attended_s=0.0, request_s=0.0, context_s=1e-7
)
"""What steps take. A token of a prompt takes 0.1 ms, so CHUNK tokens beside one decode take LEAST_OF_TPOT of TPOT_S."""
STEEP = StepModel(
    fixed_s=0.01, token_s=2e-5, knee_tokens=CHUNK, beyond_knee_s=1e-5, attended_s=5e-8, request_s=0.0, context_s=1e-7
)
"""The same where a token that comes after many others takes much longer."""
MIXTURE = StepModel(
    fixed_s=0.005,
    token_s=2e-5,
    knee_tokens=CHUNK,
    beyond_knee_s=0.0,
    attended_s=0.0,
    request_s=0.0,
    context_s=1e-7,
    experts_s=0.012,
    unrouted=0.9,
)
"""The same for a mixture of experts. A few tokens of a prompt lengthen a step beside one decode by nearly all that
TPOT_S has left.
"""


def a_config(num_blocks: int, slots: int, *, caches: bool = False) -> VllmConfig:
    config = VllmConfig(
        model_config=ModelConfig(model=str(REPO_ROOT / "conf/models/baton-demo"), dtype="bfloat16", seed=0),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=caches),
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=MOST,
            max_num_seqs=slots,
            max_model_len=8192,
            is_encoder_decoder=False,
            policy="priority",
        ),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.num_gpu_blocks = num_blocks
    return config


def parts_of(config: VllmConfig) -> dict[str, Any]:
    """What vLLM makes its scheduler of."""
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return {
        "vllm_config": config,
        "kv_cache_config": KVCacheConfig(config.cache_config.num_gpu_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        "structured_output_manager": StructuredOutputManager(config),
        "block_size": BLOCK,
    }


class Stepping:
    """An engine that generates token 7 for each request, one step at a time."""

    def __init__(
        self,
        num_blocks: int = 1000,
        *,
        kind: Any = DeadlineScheduler,
        slots: int = SLOTS,
        times: StepModel = TIMES,
        pipe: Any = None,
        caches: bool = False,
    ) -> None:
        self._now = 0.0
        config = a_config(num_blocks, slots, caches=caches)
        parts = parts_of(config) | {"log_stats": pipe is not None}
        self.scheduler = kind(**parts, budget=PromptBudget(config, times), clock=lambda: self._now, pipe=pipe)
        self.answers: list[EngineCoreOutputs] = []
        """What vLLM's own way carries to the worker."""
        self._times = times
        self.steps: list[dict[str, int]] = []
        """Tokens of each step, by request."""
        self.firsts: list[str] = []
        """Requests in the order of their first tokens."""
        self.overruns_s: list[float] = []
        """By how much each step beside decodes that have an objective takes longer than their objective allows at
        most.
        """
        self.ended_at: list[float] = []
        """When each step has ended, in seconds."""
        self._generated: dict[str, int] = {}
        self._tpot_s: dict[str, float] = {}
        self._depth = 2 if kind is AsyncDeadlineScheduler else 1
        self._planned: deque[tuple[SchedulerOutput, list[list[int]], float]] = deque()

    def add(
        self,
        name: str,
        num_tokens: int,
        due: int = NO_DEADLINE,
        num_output: int = 1,
        tpot_s: float | None = TPOT_S,
        rank: int = 0,
        **sampling: Any,
    ) -> Request:
        params = SamplingParams(max_tokens=num_output, ignore_eos=True, temperature=0.0, **sampling)
        params.extra_args = extra_args(None, tpot_s, rank)
        self._tpot_s[name] = inf if tpot_s is None else tpot_s
        request = Request(name, list(range(num_tokens)), params, None, priority=due, arrival_time=len(self._generated))
        self._generated[name] = 0
        self.scheduler.add_request(request)
        return request

    def add_tokens(
        self, name: str, tokens: Iterable[int], hasher: Any, num_output: int = 1, salt: str | None = None
    ) -> Request:
        """Add a prompt whose blocks are known by their hashes."""
        params = SamplingParams(max_tokens=num_output, ignore_eos=True, temperature=0.0)
        request = Request(
            name,
            list(tokens),
            params,
            None,
            arrival_time=len(self._generated),
            block_hasher=hasher,
            cache_salt=salt,
        )
        self._generated[name], self._tpot_s[name] = 0, inf
        self.scheduler.add_request(request)
        return request

    def step(self) -> dict[str, int]:
        """Schedule steps, and give back what the first one of them has computed. Return its tokens by request. An
        asynchronous scheduler is one step ahead.
        """
        self._planned.append(self._plan())
        while len(self._planned) < self._depth:
            self._planned.append(self._plan())
        return self._take(*self._planned.popleft())

    def generated(self, name: str) -> int:
        return self._generated[name]

    def computed(self, name: str) -> int:
        return sum(step.get(name, 0) for step in self.steps)

    def until_done(self, most_steps: int = 500) -> list[dict[str, int]]:
        """Raises AssertionError if some request has not ended after so many steps."""
        first = len(self.steps)
        while self.scheduler.get_num_unfinished_requests():
            assert len(self.steps) - first < most_steps, "some request never ends"
            self.step()
        return self.steps[first:]

    def _plan(self) -> tuple[SchedulerOutput, list[list[int]], float]:
        """The next step, its tokens, and what it takes in seconds."""
        before = {r.request_id: r.num_computed_tokens for r in self.scheduler.running}
        decodes = {r.request_id for r in self.scheduler.running if not r.is_prefill_chunk}
        planned = self.scheduler.schedule()
        tokens, times, bound = planned.num_scheduled_tokens, self._times, StepBound()
        decoding = decodes & tokens.keys()
        alone = (len(decoding), sum(before[name] for name in decoding))
        binding = bound.binding_tpot_s((self._tpot_s[name] for name in decoding), times.decode_s(*alone))
        prompts = [(num, before.get(name, 0)) for name, num in tokens.items() if name not in decoding]
        num_prefill, attended = sum(num for num, _ in prompts), sum(prompt_attention(*each) for each in prompts)
        seconds = times.step_s(num_prefill, attended, *alone)
        if binding < inf and not planned.preempted_req_ids:
            least_s = times.step_s(
                LEAST_CHUNK, LEAST_CHUNK * max((context for _, context in prompts), default=0), *alone
            )
            allowed_s = max(bound.longest_step_s(times.decode_s(*alone), binding), least_s)
            if times.experts_s:
                allowed_s = max(allowed_s, LONG_OF_TPOT * binding, times.decode_s(*alone) + 2 * times.experts_s)
            self.overruns_s.append(seconds - allowed_s)
        return planned, [[] if self.scheduler.requests[name].is_prefill_chunk else [7] for name in tokens], seconds

    def _take(self, planned: SchedulerOutput, sampled: list[list[int]], seconds: float) -> dict[str, int]:
        self._now += seconds
        names = list(planned.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        for outputs in self.scheduler.update_from_output(planned, output).values():
            self.answers.append(outputs)
            for answered in outputs.outputs:
                self.firsts += [answered.request_id] * (not self._generated[answered.request_id])
                self._generated[answered.request_id] += len(answered.new_token_ids)
        self.steps.append(dict(planned.num_scheduled_tokens))
        self.ended_at.append(self._now)
        return self.steps[-1]


class PullingConnector(KVConnectorBase_V1):
    """A connector that pulls every prompt that another engine has computed. Its pulls never end by themselves."""

    def __init__(self, kv_cache_config: KVCacheConfig) -> None:
        self._kv_cache_config = kv_cache_config

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        is_pull = (request.kv_transfer_params or {}).get("do_remote_prefill", False)
        return (request.num_tokens - num_computed_tokens, True) if is_pull else (0, False)

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        if request.kv_transfer_params:
            request.kv_transfer_params["do_remote_prefill"] = False

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Any:
        return None

    def start_load_kv(self, *arguments: Any, **named: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *arguments: Any, **named: Any) -> None: ...

    def wait_for_save(self) -> None: ...


class SamplingConnector(PullingConnector):
    """A connector as vLLM makes it of a configuration. It samples the steps that a test tells it of."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        self.steps = StepSampler()
        self.retention_log = RetentionLog()
