"""What placement does where the link of the best pair is not proved: it takes what works, and that link is next."""

from cluster.messages.ids import Path, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from cluster.messages.placement import Placement
from cluster.messages.scheduler_events import FirstToken
from router.load.live_workers import REPORT_TIMEOUT_S
from router.state import RouterState
from tests.expected import present
from tests.unit.clusters import FAST, SLO, a_report, ask, put

D0, P3 = WorkerId("d0"), WorkerId("p3")
PAIR = Path.PREFILL_DECODE


def a_partly_linked_cluster(links: str, num_busy: int, num_prefills: int = 4) -> RouterState:
    """Prefill workers, the first `num_busy` of which have long queues, and a decode worker that is linked to some of
    them.
    """
    state = RouterState(SLO)
    for number in range(num_prefills):
        state.handle(a_report(f"p{number}", is_plain=True), 0.0)
    state.handle(a_report("d0", dict.fromkeys(links.split(), FAST), is_plain=True), 0.0)
    for number in range(num_busy):
        others = frozenset(WorkerId(f"p{other}") for other in range(num_prefills) if other != number)
        for turn in range(2):
            long = ask(f"long{number}-{turn}", 30_000, path=Path.PREFILL, ttft_s=60.0, excluded=others)
            assert put(state, long, 0.0).prefill == f"p{number}"
    return state


def next_link(state: RouterState, now: float) -> WorkerId:
    """To the prefill worker that the decode worker is to prove next."""
    report = state.workers.by_id[D0].report
    state.handle(report, now)
    return present(state.reply_to(report, now).link).prefill


def test_request_that_must_be_handed_over_has_its_pair_proved_next() -> None:
    """Even though it is refused: nothing else would have the link proved in time for the next one."""
    state = a_partly_linked_cluster("", num_busy=3)
    assert not isinstance(state.place(ask("r", 8000, path=PAIR), 0.1), Placement)
    assert next_link(state, 0.2) == P3


def test_without_a_wish_another_link_is_next() -> None:
    """So the other tests tell a wish from the links that are proved in advance."""
    assert next_link(a_partly_linked_cluster("", num_busy=3), 0.2) == "p0"


def test_pair_with_a_link_is_taken_where_the_best_pair_has_none() -> None:
    state = a_partly_linked_cluster("p0 p1 p2", num_busy=2)
    state.handle(a_report("p2", is_plain=True), 0.1)
    placed = put(state, ask("r", 8000, path=PAIR), 0.1)
    assert (placed.prefill, placed.decode) == ("p2", "d0")


def test_pair_with_a_link_is_taken_though_none_of_the_soonest_prefill_workers_has_one() -> None:
    state = a_partly_linked_cluster("p0", num_busy=1)
    placed = put(state, ask("r", 8000, path=PAIR), 0.1)
    assert (placed.prefill, placed.decode) == ("p0", "d0")
    assert next_link(state, 0.2) in {"p1", "p2", "p3"}


def test_busy_worker_that_holds_a_little_keeps_no_prompt_from_an_idle_one_with_a_link() -> None:
    state = a_partly_linked_cluster("p0 p4", num_busy=1, num_prefills=5)
    hashes = [block.to_bytes(8, "big") for block in range(500)]
    held = [KvChange(KvTier.GPU, True, hashes[:5])]
    state.handle_kv_events(KvEvents(WorkerId("p0"), 1, True, True, held), 0.0)
    others = frozenset(WorkerId(f"p{number}") for number in range(4))
    put(state, ask("short", 500, path=PAIR, excluded=others), 0.1)  # p4 is not among the three that are soonest
    assert put(state, ask("r", 8010, path=PAIR, block_hashes=hashes), 0.1).prefill == "p4"


def test_request_that_may_stay_runs_on_one_worker_and_its_pair_is_proved_next() -> None:
    state = a_partly_linked_cluster("", num_busy=3)
    for number in range(20):
        running = ask(f"running{number}", 2000, path=Path.DECODE, ttft_s=60.0)
        assert put(state, running, 0.0).path is Path.DECODE
        state.handle(FirstToken(request_id=running.request_id), 0.0)
    assert put(state, ask("r", 8000, ttft_s=60.0), 0.1).path is not PAIR
    assert next_link(state, 0.2) == P3


def test_wish_costs_nothing_where_the_pair_would_not_be_better() -> None:
    state = a_partly_linked_cluster("", num_busy=3)
    assert put(state, ask("r", 100), 0.1).path is not PAIR
    assert next_link(state, 0.2) == "p0"


def test_policy_for_stale_reports_wishes_too() -> None:
    state = a_partly_linked_cluster("", num_busy=2)
    stale_at = REPORT_TIMEOUT_S - 1.0
    assert not isinstance(state.place(ask("r", 8000, path=PAIR), stale_at), Placement)
    assert next_link(state, stale_at) in {"p2", "p3"}
