"""Which workers a request runs on. Pure: a function of the request and of a snapshot of the workers.

A decode worker that holds most of the prompt computes the rest itself (path D), or gets it handed over. Otherwise path
P->D on the pair with the fewest open requests whose link is warm; path D where no pair can take the request; path P
where no decode worker is left; refusal where nobody is. Equal load takes turns. A worker generates for no more requests
than it takes: the place is taken when the request is placed, not after its prefill.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from cluster.types import Path, Placement, PlacementRequest, Pool, Rejection, WorkerId, WorkerView
from router.prefix_memory import Held

T = TypeVar("T")

RETRY_AFTER_S = 5.0
"""A worker's restart takes tens of seconds: sooner only adds load, much later wastes a recovered service."""

LOCAL_TOKENS = 256
"""So few are computed beside the decodes of a worker sooner than elsewhere and moved."""
STICKY_REQUESTS = 4
"""A worker that holds the prompt may have so many open requests more than the least loaded one."""


def place(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    turn: int,
    suspects: frozenset[tuple[WorkerId, WorkerId]] = frozenset(),
    held: Held | None = None,
) -> Placement | Rejection:
    """`workers` are the live ones; `turn` counts placements and breaks ties in rotation; `suspects` are pairs of
    prefill and decode workers whose hand-overs went wrong; `held` is who had the longest part of the prompt before.
    """
    usable = [w for w in workers if w.worker not in request.excluded]
    decodes = [w for w in usable if w.pool is Pool.DECODE and _has_room(w)]
    prefills = [w for w in usable if w.pool is Pool.PREFILL]
    pairs = [(p, d) for p in prefills for d in decodes if p.worker in d.links and (p.worker, d.worker) not in suspects]
    if held is not None and (holder := _worth_staying_with(held, decodes)) is not None:
        num_missing = request.num_prompt_tokens - held.num_tokens
        if request.path is None and num_missing <= LOCAL_TOKENS:
            why = f"it holds the prompt but for {num_missing} tokens"
            return Placement(path=Path.DECODE, prefill=None, decode=holder.worker, why=why)
        pairs = [(p, d) for p, d in pairs if d is holder] or pairs
        decodes = [holder]
    if request.path in (None, Path.PREFILL_DECODE) and request.can_hand_over and pairs:
        prefill, decode = min(_rotated(pairs, turn), key=lambda pair: _load(pair[0]) + _load(pair[1]))
        why = f"least open requests of {len(pairs)} connected pairs"
        return Placement(path=Path.PREFILL_DECODE, prefill=prefill.worker, decode=decode.worker, why=why)
    if request.path in (None, Path.DECODE) and decodes:
        why = "path D is asked for" if request.path else _why_not_pair(request, prefills)
        return Placement(path=Path.DECODE, prefill=None, decode=min(_rotated(decodes, turn), key=_load).worker, why=why)
    if request.path in (None, Path.PREFILL) and (roomy := [w for w in prefills if _has_room(w)]):
        why = "path P is asked for" if request.path else "no decode worker can take it"
        worker = min(_rotated(roomy, turn), key=_load).worker
        return Placement(path=Path.PREFILL, prefill=worker, decode=None, why=why)
    why = "all workers have as many requests as they take" if usable else "no worker can be reached"
    if request.path is not None:
        why = f"path {request.path} is asked for and no worker can take it"
    return Rejection(retry_after_s=RETRY_AFTER_S, why=why)


def _worth_staying_with(held: Held, decodes: Sequence[WorkerView]) -> WorkerView | None:
    """The worker that holds the prompt, unless others have much less to do."""
    holder = next((d for d in decodes if d.worker == held.worker), None)
    if holder is None or _load(holder) > min(map(_load, decodes)) + STICKY_REQUESTS:
        return None
    return holder


def _has_room(worker: WorkerView) -> bool:
    return worker.num_placed < worker.max_requests


def _load(worker: WorkerView) -> int:
    return worker.num_placed


def _rotated(items: Sequence[T], turn: int) -> Iterable[T]:
    start = turn % len(items)
    return [*items[start:], *items[:start]]


def _why_not_pair(request: PlacementRequest, prefills: Sequence[WorkerView]) -> str:
    if not request.can_hand_over:
        return "the request cannot be handed over"
    return "no connected pair" if prefills else "no prefill worker can be reached"
