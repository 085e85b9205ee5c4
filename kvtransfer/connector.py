"""The NIXL connector that the engines load (`kv_connector_module_path`), in every process of an engine.

It is vLLM's own pull connector with eight additions:
1. On a prefill engine, leases can be ended at once and extended, and each end is reported (`ended_leases`).
2. On a decode engine, a pull counts only until its deadline. Blocks that arrive later may already hold another prompt,
   so they are computed instead.
3. A decode engine takes a prompt that is longer than the handoff: the first token, which the prefill engine has
   sampled, follows the prompt.
4. Every engine reports how long its steps and pulls take (`HandoffStats`).
5. Engines ask each other for NIXL metadata on connections that prove themselves (kvtransfer/side_channel.py).
6. The connector of an engine's core installs the guard of what constraints of requests cost the engine
   (cluster/engine_core/grammar_guard.py), and the hashes of public prefixes (cluster/engine_core/public_prefix.py).
7. A decode engine knows what it has pulled from whom, and can forget it (kvtransfer/forgetting.py).
8. Every engine reports what became of the KV blocks that it has kept (cluster/engine_core/retention_log.py).

Importing this module also fits the engine's process to a shared host. The process ends with the worker that owns it,
and logs as the worker does. It is not pinned to the machine's last core. On the CPU, NIXL's progress thread sleeps
between polls, and the process may use AMX; on GPU nodes NIXL's thread spins, which is worth a core there.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import time
from typing import Any, cast

import msgspec
import nixl._api
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker as nixl_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from cluster.config.structured_output import GrammarBudgetConfig
from cluster.engine_core import public_prefix
from cluster.engine_core.amx import ask_for_tiles
from cluster.engine_core.grammar_budget import GrammarBudget
from cluster.engine_core.grammar_guard import install
from cluster.engine_core.retention_log import RETENTION_KEY, RetentionLog
from cluster.engine_core.step_samples import STATS_KEY, StepSampler
from cluster.network import strangers
from cluster.network.open_files import allow_open_files
from cluster.network.strangers import STRANGERS
from cluster.observability.logging import set_up_logging
from kvtransfer import forgetting, side_channel
from kvtransfer.checked_agent import CheckedAgent
from kvtransfer.forgetting import OriginLog
from kvtransfer.handoff import PULL_DEADLINE
from kvtransfer.lease_terms import LeaseEnd, stats_key
from kvtransfer.pull_times import PullTimes
from kvtransfer.telemetry import PULLS_KEY
from kvtransfer.tiers.connector_arguments import GRAMMARS

logger = logging.getLogger("baton.connector")

PROGRESS_THREAD_DELAY_US = 100
"""Pause between two polls of NIXL's progress thread, in microseconds. Longer adds to each step of a transfer; shorter
costs idle CPU, 95 % of a core without a pause and 2 % with this one.
"""

DEADLINES_KEPT_S = 60.0
"""Seconds that a deadline is kept after it has passed. A prompt that was found in the engine's own cache is never
pulled, and leaves its deadline behind. More takes memory; fewer may forget the deadline of a pull that is renewed late.
"""

_PR_SET_PDEATHSIG = 1


class NixlConnector(NixlPullConnector):
    """Named like vLLM's connector, because vLLM checks for the name."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        NixlBaseConnector.__init__(
            self, vllm_config, role, kv_cache_config
        )  # the parent's __init__ would make vLLM's own parts
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = HandoffScheduler(vllm_config, self.engine_id, kv_cache_config)
            settings = vllm_config.kv_transfer_config.kv_connector_extra_config[GRAMMARS]
            install(GrammarBudget.of(msgspec.convert(settings, GrammarBudgetConfig)))
            forgetting.install()
            public_prefix.install()
        else:
            self.connector_worker = LeasingWorker(vllm_config, self.engine_id, kv_cache_config)

    @property
    def steps(self) -> StepSampler | None:
        """The sampler of the engine's steps. None in processes that do not schedule."""
        scheduler = self.connector_scheduler
        return scheduler.steps if isinstance(scheduler, HandoffScheduler) else None

    @property
    def origin_log(self) -> OriginLog | None:
        """Where the engine's blocks came from. None in processes that do not schedule."""
        scheduler = self.connector_scheduler
        return scheduler.origin_log if isinstance(scheduler, HandoffScheduler) else None

    @property
    def retention_log(self) -> RetentionLog | None:
        """What became of kept blocks. None in processes that do not schedule."""
        scheduler = self.connector_scheduler
        return scheduler.retention_log if isinstance(scheduler, HandoffScheduler) else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return HandoffStats(data=data) if data is not None else HandoffStats()

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """vLLM calls this once per step in each process; in the scheduler's process, at the very end of the step."""
        if isinstance(self.connector_scheduler, HandoffScheduler):
            return self.connector_scheduler.step_stats()
        return super().get_kv_connector_stats()


_OUR_KEYS = (*map(stats_key, LeaseEnd), PULLS_KEY, STATS_KEY, RETENTION_KEY, strangers.STATS_KEY)


class HandoffStats(NixlKVConnectorStats):
    """vLLM's statistics, with leases that have ended, by cause, with durations of pulls, with samples of steps, and
    with counts of kept blocks.
    """

    def reset(self) -> None:
        super().reset()
        self.data |= {key: [] for key in _OUR_KEYS}

    def is_empty(self) -> bool:
        return super().is_empty() and not any(self.data[key] for key in _OUR_KEYS)

    def record(self, key: str, value: Any) -> None:
        cast(list[Any], self.data[key]).append(value)


class HandoffScheduler(NixlPullConnectorScheduler):
    def __init__(self, vllm_config: VllmConfig, engine_id: str, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self.steps = StepSampler()
        self.retention_log = RetentionLog()
        self.origin_log = OriginLog(vllm_config.cache_config.block_size)

    @staticmethod
    def _nixl_handshake_listener(*arguments: Any) -> None:
        """The thread to which other engines connect. If it fails, the engine ends: vLLM waits until the thread listens,
        and would wait for ever.
        """
        try:
            side_channel.listen(*arguments)
        except BaseException:
            logger.exception("no engine can connect to this engine: it ends")
            os._exit(1)

    def _truncate_request_for_prefill(self, request: Request) -> None:
        """vLLM leaves the last prompt tokens of some models to the decode engine. The token that is sampled before them
        belongs to no answer, so it must not end the request: without the end by length there would be no handoff.
        """
        num_prompt = request.num_prompt_tokens
        super()._truncate_request_for_prefill(request)
        params = request.sampling_params
        if request.num_prompt_tokens < num_prompt and params is not None:
            params.stop_token_ids = []
            params._eos_token_id = None

    def step_stats(self) -> KVConnectorStats | None:
        """The samples of a step that is done, and what else this process has counted. None if there is nothing."""
        now = time.monotonic()
        self.steps.done(now)
        samples, dropped, kept = self.steps.take(now), STRANGERS.take(), self.retention_log.take(now)
        if samples is None and not dropped and not kept:
            return None
        stats = HandoffStats()
        stats.data[STATS_KEY] = samples or []
        stats.data[strangers.STATS_KEY] = list(dropped)
        stats.data[RETENTION_KEY] = list(kept)
        return stats

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        params = request.kv_transfer_params or {}
        num_remote = params.get("remote_num_tokens") or 0
        if params.get("do_remote_prefill") and 0 < num_remote < request.num_prompt_tokens:
            num_new = max(0, num_remote - num_computed_tokens)
            return num_new, num_new > 0
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        self.origin_log.pulls(request, num_external_tokens)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def request_finished(self, request: Request, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        self.origin_log.finished(request)
        return cast(tuple[bool, dict[str, Any] | None], super().request_finished(request, block_ids))

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> NixlConnectorMetadata:
        deadlines = {
            request_id: deadline
            for request_id, (request, *_) in self._reqs_need_recv.items()
            if (deadline := (request.kv_transfer_params or {}).get(PULL_DEADLINE)) is not None
        }
        metadata = super().build_connector_meta(scheduler_output)
        assert isinstance(metadata, NixlConnectorMetadata)
        setattr(metadata, PULL_DEADLINE, deadlines)
        self.steps.scheduled(scheduler_output, time.monotonic())
        return metadata


class LeasingWorker(NixlPullConnectorWorker):
    nixl_wrapper: Any

    def __init__(self, vllm_config: VllmConfig, engine_id: str, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self.xfer_stats = HandoffStats()
        self.nixl_wrapper = CheckedAgent(self.nixl_wrapper)
        self._ending: set[str] = set()
        self._deadlines: dict[str, float] = {}
        self._pulls = PullTimes()

    def end_leases(self, leases: list[str]) -> list[str]:
        """Free the blocks in the next step; return the leases that had already ended."""
        self._ending.update(lease for lease in leases if lease in self._reqs_to_process)
        return [lease for lease in leases if lease not in self._reqs_to_process]

    def extend_leases(self, leases: list[str], seconds: float) -> list[str]:
        """Keep the blocks for `seconds` from now; return the leases whose blocks are still kept."""
        until = time.perf_counter() + seconds
        kept = [lease for lease in leases if lease in self._reqs_to_process and lease not in self._ending]
        for lease in kept:
            if lease in self._reqs_to_send:
                self._reqs_to_send[lease] = max(self._reqs_to_send[lease], until)
        return kept

    def renew_pulls(self, deadlines: dict[str, float]) -> dict[str, float]:
        """Set new deadlines of pulls that have not ended; return for how many seconds each has been reading."""
        now = time.monotonic()
        self._deadlines |= deadlines
        return {request_id: self._pulls.seconds(request_id, now) for request_id in deadlines}

    def start_load_kv(self, metadata: NixlConnectorMetadata) -> None:
        if deadlines := getattr(metadata, PULL_DEADLINE, None):
            oldest = time.monotonic() - DEADLINES_KEPT_S
            kept = {
                request_id: deadline
                for request_id, deadline in self._deadlines.items()
                if deadline > oldest or request_id in self._recving_metadata
            }
            self._deadlines = deadlines | kept  # a deadline that has already been renewed is newer
            self._pulls.forget(self._recving_metadata)
        super().start_load_kv(metadata)

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        """Start a pull, unless it is already late."""
        if req_id in self._recving_metadata and self._is_late(req_id, time.monotonic()):
            self._handle_failed_transfer(req_id, None, self._recv_failures, record_failed_transfer=False)
            return
        began_at = time.monotonic()
        super()._read_blocks_for_req(req_id, meta)
        if req_id in self._recving_transfers:
            self._pulls.began(req_id, began_at, time.monotonic())
        elif req_id in self._recving_metadata:  # otherwise it was found in the cache
            self._pulls.connects(req_id, began_at)

    def get_transfer_results(self) -> Any:
        results = super().get_transfer_results()
        released = {lease for lease in self._ending if lease in self._reqs_to_send}
        for lease in released:
            self.consumer_notification_counts_by_req.pop(lease, None)
            self.expected_consumer_notifications_by_req.pop(lease, None)
            self._reqs_to_process.discard(lease)
            del self._reqs_to_send[lease]
            self._record(LeaseEnd.RELEASED, lease)
        results.finished_sending |= released
        self._ending &= self._reqs_to_process
        for request_id in results.finished_recving:
            self._deadlines.pop(request_id, None)
        return results

    def _get_new_notifs(self) -> set[str]:
        read = super()._get_new_notifs()
        for lease in read:
            self._record(LeaseEnd.READ, lease)
        return read

    def _reap_expired_send_leases(self, done_sending: set[str]) -> None:
        before = set(done_sending)
        super()._reap_expired_send_leases(done_sending)
        for lease in done_sending - before:
            self._record(LeaseEnd.EXPIRED, lease)

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        under_way = dict(transfers)
        done, failed = super()._pop_done_transfers(transfers)
        if not under_way:
            return done, failed
        now = time.monotonic()
        failed |= {request_id for request_id in done if self._is_late(request_id, now)}
        self._pulls.reads(transfers, now)
        self._pulls.moved(under_way, self.nixl_wrapper.take_told())
        for request_id in done:
            pull = self._pulls.over(request_id, now)
            if pull is not None and request_id not in failed and self.tp_rank == 0:
                self.xfer_stats.record(PULLS_KEY, (request_id, msgspec.structs.astuple(pull)))
        return done, failed

    def _is_late(self, request_id: str, now: float) -> bool:
        """A pull without a known deadline is late, too."""
        return now > self._deadlines.get(request_id, 0.0)

    def _cleanup_remote_engines(self) -> None:
        """Connect anew after one failed read. vLLM does it only when NIXL has dropped the connection, but after a
        network fault NIXL keeps a connection that will never work again. The prefill worker has just shown that it
        lives.
        """
        now = time.perf_counter()
        for engine in self._failed_remote_engines - self._invalid_remote_engines:
            if engine in self._remote_agents:
                self._mark_remote_engine_invalid(engine, now)
        super()._cleanup_remote_engines()

    def _record(self, how: LeaseEnd, lease: str) -> None:
        if self.tp_rank == 0:
            self.xfer_stats.record(stats_key(how), lease)


class LeaseCalls:
    """What the front of the engine may call in each of its ranks (vLLM's `worker_extension_cls`)."""

    def baton_end_leases(self, leases: list[str]) -> list[str]:
        return _leasing_worker().end_leases(leases)

    def baton_extend_leases(self, leases: list[str], seconds: float) -> list[str]:
        return _leasing_worker().extend_leases(leases, seconds)

    def baton_renew_pulls(self, deadlines: dict[str, float]) -> dict[str, float]:
        return _leasing_worker().renew_pulls(deadlines)

    def baton_kv_format(self) -> tuple[str, str, str]:
        """What other engines must have alike: vLLM's digest, the layout of the KV blocks, and the attention backend."""
        worker = _leasing_worker()
        return str(worker.compat_hash), str(worker.kv_cache_layout), str(worker.backend_name)


def _leasing_worker() -> LeasingWorker:
    group: Any = get_kv_transfer_group()
    connectors = getattr(group, "_connectors", [group])  # MultiConnector's
    (worker,) = [c.connector_worker for c in connectors if isinstance(c, NixlConnector)]
    return worker


class _PatientBindings:
    """NIXL's bindings, with a progress-thread delay that its Python API hard-codes to zero."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def nixlAgent(self, name: str, config: Any) -> Any:  # noqa: N802
        config.pthrDelay = PROGRESS_THREAD_DELAY_US
        return self._bindings.nixlAgent(name, config)


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    """End this process with its parent. An engine core would otherwise keep its memory and port after a SIGKILL of its
    worker.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent.pid != os.getppid():  # the parent was killed before the call
        os.kill(os.getpid(), signal.SIGKILL)


def _share_the_cpu() -> None:
    agent_module: Any = sys.modules[nixl._api.nixl_agent.__module__]
    if not isinstance(agent_module.nixlBind, _PatientBindings):
        agent_module.nixlBind = _PatientBindings(agent_module.nixlBind)
    # The connector pins its process to the last core of each NUMA node that it discovers.
    type(current_platform).discover_numa_topology = classmethod(lambda cls: [])


nixl_worker.zmq_ctx = side_channel.connected
if _worker := multiprocessing.parent_process():  # this is the engine's process
    _end_with(_worker)
    set_up_logging()
    allow_open_files(side_channel.MAX_OPEN_FILES)
if current_platform.is_cpu():
    _share_the_cpu()
    ask_for_tiles()
