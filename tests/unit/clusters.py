"""A Scheduler's state with workers whose times are known: Qwen3-32B on pairs of H100."""

from collections.abc import Mapping
from typing import Any

from cluster.messages.ids import Address, Path, Pool, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest
from cluster.messages.reports import EngineShape, WorkerLoad, WorkerReport
from cluster.messages.scheduler_events import FirstToken, PrefillDone, RequestClosed
from cluster.messages.transport import LinkSpeed
from cluster.slo import Objective, SloConfig
from router.state import RouterState

KIND = "qwen3-32b|h100|tp2"
BLOCK = 16
SLO = SloConfig(
    interactive=Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05),
    standard=Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05),
    batch=Objective(ttft_s=60.0, ttft_per_prefill=3.0, tpot_s=1.0),
)
FAST = LinkSpeed(0.5e-3, 49.5e9)


def a_report(
    worker: str,
    links: Mapping[WorkerId, LinkSpeed | None] | Mapping[str, LinkSpeed | None] | None = None,
    *,
    is_plain: bool = False,
    **load: Any,
) -> WorkerReport:
    """The report of a prefill worker if its name starts with p, else of a decode worker. `is_plain`: its engine has
    vLLM's own scheduler: prompts in the order of arrival, and steps that no objective bounds.
    """
    pool = Pool.PREFILL if worker.startswith("p") else Pool.DECODE
    return WorkerReport(
        worker=WorkerId(worker),
        pool=pool,
        address=Address(worker, 1, "70726f63657373"),
        load=WorkerLoad(**load),
        max_requests=2000,
        shape=EngineShape(
            kind=KIND,
            kv_capacity_tokens=316_963,
            block_size=BLOCK,
            max_step_tokens=8192 if pool is Pool.PREFILL else 1024,
            kv_bytes_per_token=262_144,
            has_short_steps=not is_plain,
            by_deadline=not is_plain,
            overtakes=not is_plain,
        ),
        links={WorkerId(prefill): speed for prefill, speed in (links or {}).items()},
    )


def a_cluster(
    num_prefill: int, num_decode: int, link: LinkSpeed | None = FAST, now: float = 0.0, *, is_plain: bool = False
) -> RouterState:
    """The state of a Scheduler whose pairs of workers are all connected by such a link."""
    state = RouterState(SLO)
    prefills = [f"p{i}" for i in range(num_prefill)]
    for worker in prefills:
        state.handle(a_report(worker, is_plain=is_plain), now)
    for number in range(num_decode):
        state.handle(a_report(f"d{number}", dict.fromkeys(prefills, link), is_plain=is_plain), now)
    return state


def ask(request_id: str, num_prompt: int, **fields: Any) -> PlacementRequest:
    defaults: dict[str, Any] = {"num_prompt_tokens": num_prompt, "has_early_token": True}
    return PlacementRequest(request_id=RequestId(request_id), **(defaults | fields))


def put(state: RouterState, request: PlacementRequest, now: float) -> Placement:
    """Placed at once."""
    answer = state.place(request, now)
    assert isinstance(answer, Placement), answer
    state.validate()
    return answer


def decoding(state: RouterState, request_id: str, num_prompt: int, worker: str, now: float, **fields: Any) -> None:
    """The worker decodes this request, which was handed to it where there is a prefill worker."""
    workers = state.view(now).workers
    others = frozenset(w.worker for w in workers if w.pool is Pool.DECODE and w.worker != worker)
    has_prefill = any(w.pool is Pool.PREFILL for w in workers)
    put(
        state,
        ask(
            request_id, num_prompt, path=Path.PREFILL_DECODE if has_prefill else Path.DECODE, excluded=others, **fields
        ),
        now,
    )
    state.handle(FirstToken(request_id=RequestId(request_id)), now)


def prefilled(state: RouterState, request_id: str, now: float) -> None:
    state.handle(PrefillDone(request_id=RequestId(request_id)), now)


def ended(state: RouterState, request_id: str, now: float, **fields: Any) -> None:
    state.handle(RequestClosed(request_id=RequestId(request_id), **fields), now)


def report_all(state: RouterState, now: float, *, is_plain: bool = False) -> None:
    for worker in state.view(now).workers:
        state.handle(a_report(worker.worker, worker.links, is_plain=is_plain), now)
