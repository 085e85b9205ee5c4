"""Decode workers whose memory is full of long requests, and requests that come for them."""

from typing import Any

from cluster.messages.ids import IngressId, Path, RequestId, SloClass
from cluster.messages.placement import Placement, Rejection
from cluster.messages.scheduler_events import FirstToken, Pause
from router.state import RouterState
from tests.unit.clusters import SLO, a_report, ask, put

INTERACTIVE, STANDARD, BATCH = SloClass
LONG = 15_500
"""Prompt tokens of which NUM_LONG fill a worker's memory."""
NUM_LONG = 20
WORKERS = ["d0"]
BEGAN = 60.0
"""When the long requests begin to decode. They were placed at time 0."""
NOW = BEGAN + 3.0
INGRESS = IngressId("one")


def a_full_worker(
    slo_class: SloClass = BATCH, number: int = NUM_LONG, num_workers: int = 1, *, preempts: bool = True, **fields: Any
) -> RouterState:
    """Decode workers that decode long requests since BEGAN. It is NOW."""
    state = RouterState(SLO, preempts=preempts)
    workers = [f"d{number}" for number in range(num_workers)]
    report(state, workers, 0.0)
    for worker in workers:
        decode_long(state, worker, 0.0, BEGAN, [f"{worker}.{n}" for n in range(number)], slo_class, **fields)
    report(state, workers, NOW)
    return state


def decode_long(
    state: RouterState,
    worker: str,
    placed_at: float,
    began_at: float,
    names: list[str],
    slo_class: SloClass = BATCH,
    **fields: Any,
) -> None:
    others = frozenset(view.worker for view in state.view(placed_at).workers if view.worker != worker)
    long = {"slo_class": slo_class, "can_pause": True, "excluded": others, "path": Path.DECODE} | fields
    for name in names:
        put(state, ask(name, LONG, **long), placed_at)
    for name in names:
        state.handle(FirstToken(request_id=RequestId(name)), began_at)


def report(state: RouterState, workers: list[str], now: float) -> None:
    for worker in workers:
        state.handle(a_report(worker), now)


def asks(
    state: RouterState,
    now: float = NOW,
    slo_class: SloClass = INTERACTIVE,
    name: str = "r",
    num_prompt: int = 12_000,
    **fields: Any,
) -> tuple[Placement | Rejection | None, list[Pause]]:
    """The answer to a request, and the pauses for it."""
    answer = state.place(ask(name, num_prompt, slo_class=slo_class, **fields), now)
    state.validate()
    return answer, [pause for _, pause, _ in state.take_pauses()]


def comes_back(state: RouterState, pause: Pause, now: float, **fields: Any) -> Placement | Rejection | None:
    """The ingress has paused the request, and asks for it anew."""
    asked = ask(
        pause.request_id,
        LONG + 100,
        num_output_tokens=100,
        slo_class=BATCH,
        can_pause=True,
        **({"attempt": pause.attempt + 1, "num_pauses": 1, "is_paused": True} | fields),
    )
    answer = state.place(asked, now)
    state.validate()
    return answer
