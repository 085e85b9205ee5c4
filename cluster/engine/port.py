"""What an engine must give to the worker around it. Another engine than vLLM means another implementation of
`WorkerEngine` and one line in cluster/worker/engine_start.py, and no change in the pools or the Scheduler.

Three formats are vLLM's, and another engine must use them or translate them: sampling parameters and log-probabilities
(cluster/engine/sampling_params.py, token_tap.py), which the ingress writes and reads; hashes of KV blocks
(cluster/engine/block_hashes.py), which the ingress computes; and the parameters of a handoff (kvtransfer/handoff.py).

Each consumer names the part that it uses. The step stream (cluster/step_stream/worker_side.py) lies below this package
and names its part itself: `GeneratingEngine`, which every `PullingEngine` is. The simulated worker is only a
`ReportedEngine`, because it generates no tokens.

The worker calls all methods on its event loop. Times are seconds of `time.monotonic`: the event loop has the same
clock, and so have the engine's own processes on the same machine.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from cluster.messages.generation import GenerateRequest, PromptTokenSources
from cluster.messages.ids import RequestId
from cluster.messages.reports import EngineShape, StepSample, WorkerLoad
from cluster.messages.retention import ToolWait
from cluster.messages.transport import WorkerTransport
from cluster.step_stream.buffer import DeltaSink
from kvtransfer.handoff import KVHandoff, PrefillResult, PulledBlocks
from kvtransfer.lease_terms import LeaseEnd, LeaseId
from kvtransfer.telemetry import Pull, TransferLog


class EngineHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine calls when something has happened. Hooks run in its output loop: they must not block or raise."""

    on_prompt: Callable[[PromptTokenSources], None]
    """The engine has processed the prompt of a request that still runs."""
    on_step: Callable[[], None]
    """The engine has put all outputs of a step into their sinks. One message per step and ingress depends on it."""
    on_ended_leases: Callable[[list[tuple[LeaseId, LeaseEnd]]], None]
    """The engine has freed the KV blocks of these leases."""


class ReportedEngine(Protocol):
    """What every report says of an engine, of a simulated one too. A real worker also reports `transport`,
    `open_requests` and `kv_events` of its `WorkerEngine`.
    """

    @property
    def shape(self) -> EngineShape:
        """What does not change while the engine lives. Engines that differ in speed must differ in `kind`: the
        Scheduler learns one latency model per kind.
        """
        ...

    def load(self) -> WorkerLoad:
        """Queue and memory after the last step, and how many requests the engine has now, if it counts them."""
        ...

    def take_samples(self) -> list[StepSample]:
        """Some of the steps since the last call. The Scheduler learns its latency models from these samples."""
        ...


class WatchedEngine(Protocol):
    """What tells a dead or hanging engine from one that is busy."""

    async def answer(self) -> None:
        """Return when the engine answers, which it may do only between two steps."""
        ...

    async def check_health(self) -> None:
        """Raise when the engine is dead. Must not wait for the engine."""
        ...

    async def give_up_running(self) -> None:
        """Fail all running requests with EngineLost, so that they run elsewhere. Abort them if the engine recovers."""
        ...


class LendingEngine(Protocol):
    """What the KV lender uses (prefill/kv_lender.py): prompts are computed, and their KV blocks kept under leases."""

    async def prefill(self, request: GenerateRequest) -> tuple[PrefillResult, float] | None:
        """Compute a prompt and keep its KV blocks until the lease ends; return the result and the time from which the
        blocks are kept. None if the prefill ended without a handoff: it was aborted, or it failed in the engine.

        Raises:
            InvalidRequest: the engine refuses the request.
            WorkerBusy: the engine has its maximum of requests.
            WorkerUnreachable: the engine died.
        """
        ...

    async def abort(self, request_id: RequestId) -> None:
        """End a running prefill. Its `prefill` then returns None, or its result if the abort came too late: the KV
        blocks of a prefill that has finished stay kept, and the caller must end their lease.
        """
        ...

    async def end_leases(self, leases: list[LeaseId]) -> list[LeaseId]:
        """Free the KV blocks of these leases now; return the leases that had already ended. Raises ServingError."""
        ...

    async def extend_leases(self, leases: list[LeaseId], seconds: float) -> list[LeaseId]:
        """Keep the KV blocks of these leases for `seconds` from now; return the leases whose blocks the engine still
        keeps. Raises ServingError.
        """
        ...


class PullingEngine(Protocol):
    """What the KV puller uses (decode/kv_puller.py): tokens are generated, from a handoff or from the prompt alone."""

    async def start(
        self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink, pull_deadline: float = 0.0
    ) -> None:
        """Generate into `sink` until every sequence has a finish reason or `stop` is called. The sink fails with
        EngineLost when the engine dies. With a handoff, the engine pulls the KV blocks of the prompt. It must not use
        blocks that arrive after `pull_deadline`, because they may already hold another prompt; it computes the prompt
        instead.

        Raises:
            InvalidRequest: the engine refuses the request.
            WorkerBusy: the engine has its maximum of requests.
            WorkerUnreachable: the engine died.
        """
        ...

    async def stop(self, request_id: RequestId) -> None:
        """End a request. Its sink gets nothing more. No-op if the request does not run."""
        ...

    async def renew_pulls(self, deadlines: dict[RequestId, float]) -> dict[RequestId, float]:
        """Set new deadlines of pulls; return for how many seconds each pull has been reading, 0 if it does not read.
        Raises ServingError.
        """
        ...

    def pull_of(self, request_id: RequestId) -> Pull | None:
        """How long the pull of a running request took, available once, from the request's first token on. None if
        nothing was pulled.
        """
        ...


class ProbingEngine(Protocol):
    """What the link probe uses (decode/link_probe.py): prompts that no cache holds, and the time of their transfers."""

    @property
    def transfers(self) -> TransferLog:
        """The last reads of KV blocks, by any request."""
        ...

    @property
    def largest_probe_blocks(self) -> int:
        """KV blocks of the longest prompt that disturbs other requests no more than a usual prompt."""
        ...

    def probe_request(self, request_id: RequestId, num_blocks: int) -> GenerateRequest:
        """Make a request with a prompt of `num_blocks` KV blocks that no cache holds, answered with one token."""
        ...


class KvEventSource(Protocol):
    """Where the worker reads what its engine caches (cluster/engine/kv_event_feed.py). Batches are numbered from 0 and
    encoded as `EventBatch` of cluster/engine/kv_mirror.py, in msgpack.
    """

    def connect(self) -> None:
        """Begin to listen. The engine has started."""
        ...

    def event(self) -> tuple[int, bytes] | None:
        """The next batch and its number. None if no batch waits."""
        ...

    def ask_for_replay(self, first: int) -> None:
        """Ask for the batches from the number `first` on, as far as the engine still keeps them."""
        ...

    def replayed(self) -> tuple[int, bytes] | None:
        """The next batch of a replay, which ends with the number -1. None if no batch waits."""
        ...

    def remove_names(self) -> object:
        """Remove what other processes find the source by. Called once the worker is connected, perhaps again later."""
        ...


class WorkerEngine(ReportedEngine, WatchedEngine, Protocol):
    """One engine, whole, as cluster/worker/worker.py runs it. Making one starts it, which blocks."""

    @property
    def prefills(self) -> LendingEngine: ...

    @property
    def generations(self) -> PullingEngine:
        """In a prefill engine, too: it generates where no decode worker can."""
        ...

    @property
    def probes(self) -> ProbingEngine: ...

    @property
    def kv_events(self) -> KvEventSource: ...

    @property
    def transport(self) -> WorkerTransport:
        """How the engine may move KV blocks, chosen when it started."""
        ...

    @property
    def open_requests(self) -> list[RequestId]:
        """Requests that the engine has accepted and not ended."""
        ...

    def attach(self, hooks: EngineHooks) -> None:
        """Call these hooks from now on. Called once, before the first request."""
        ...

    async def warm_up(self) -> None:
        """Do what would otherwise delay the first requests for seconds. Raises ServingError."""
        ...

    async def forget(self, blocks: PulledBlocks) -> None:
        """Drop these blocks, and what was computed on top of them, from the prefix cache and the tiers. Requests that
        use them are computed anew; others go on. Raises ServingError if the engine cannot.
        """
        ...

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache and the tiers, which cannot be trusted, and compute running requests anew. Blocks
        under leases stay as they are. Raises ServingError if the engine cannot.
        """
        ...

    async def await_tools(self, wait: ToolWait) -> None:
        """An answer has called tools: keep the KV blocks of its conversation for a while, where the engine can. Raises
        ServingError.
        """
        ...

    async def hand_back_running(self) -> None:
        """Fail all running requests with WorkerUnreachable, so that they run elsewhere: the worker leaves."""
        ...

    async def drained(self) -> None:
        """Return when no request runs."""
        ...

    def shutdown(self) -> None:
        """End the engine and its processes."""
        ...
