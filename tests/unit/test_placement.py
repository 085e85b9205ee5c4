import pytest
from factories import a_decode_view, a_placement_request, a_prefill_view, ids

from cluster.types import Path, Placement, PlacementRequest, Rejection, WorkerId, WorkerView
from router.placement import LOCAL_TOKENS, STICKY_REQUESTS, place
from router.prefix_memory import Held

PAIR, ALONE, ON_PREFILL = Path.PREFILL_DECODE, Path.DECODE, Path.PREFILL


def placed(request: PlacementRequest, *workers: WorkerView, turn: int = 0) -> Placement:
    answer = place(request, workers, turn)
    assert isinstance(answer, Placement), answer
    return answer


def test_connected_pair_takes_a_request():
    answer = placed(a_placement_request(), a_prefill_view("p0"), a_decode_view("d0", connected="p0"))
    assert (answer.path, answer.prefill, answer.decode) == (PAIR, "p0", "d0")
    assert answer.why == "least open requests of 1 connected pairs"


@pytest.mark.parametrize(
    ("fields", "connected", "why"),
    [
        ({}, "", "no connected pair"),
        ({"can_hand_over": False}, "p0", "the request cannot be handed over"),
        ({"path": ALONE}, "p0", "path D is asked for"),
        ({"excluded": ids("p0")}, "p0", "no prefill worker can be reached"),
    ],
)
def test_request_that_no_pair_can_take_runs_on_a_decode_worker(fields, connected, why):
    answer = placed(a_placement_request(**fields), a_prefill_view("p0"), a_decode_view("d0", connected=connected))
    assert (answer.path, answer.prefill, answer.decode, answer.why) == (ALONE, None, "d0", why)


@pytest.mark.parametrize("fields", [{"can_hand_over": False}, {"excluded": ids("p0")}], ids=["no hand-over", "no p"])
def test_path_that_is_asked_for_is_never_replaced_by_another(fields):
    workers = [a_prefill_view("p0"), a_decode_view("d0", connected="p0")]
    answer = place(a_placement_request(path=PAIR, **fields), workers, turn=0)
    assert isinstance(answer, Rejection)
    assert "P->D is asked for" in answer.why


def test_request_is_refused_without_a_worker():
    answer = place(a_placement_request(), [], turn=0)
    assert isinstance(answer, Rejection)
    assert (answer.why, answer.retry_after_s) == ("no worker can be reached", 5.0)


@pytest.mark.parametrize(
    ("fields", "decodes"),
    [({}, []), ({"excluded": ids("d0")}, [a_decode_view("d0")]), ({"path": ON_PREFILL}, [a_decode_view("d0")])],
    ids=["no decode worker", "failed on it", "asked for"],
)
def test_request_that_no_decode_worker_can_take_runs_on_a_prefill_worker(fields, decodes):
    answer = placed(a_placement_request(**fields), a_prefill_view("p0"), *decodes)
    assert (answer.path, answer.prefill, answer.decode, answer.generating) == (ON_PREFILL, "p0", None, "p0")


def test_worker_generates_for_no_more_requests_than_it_takes():
    full, roomy = a_decode_view("d0", num_placed=2, max_requests=2), a_decode_view("d1", num_placed=9)
    prefill = a_prefill_view("p0", num_placed=2, max_requests=2)
    assert placed(a_placement_request(), prefill, full, roomy).decode == "d1"
    answer = place(a_placement_request(), [prefill, full], turn=0)
    assert isinstance(answer, Rejection)
    assert answer.why == "all workers have as many requests as they take"


def test_pair_whose_hand_over_was_wrong_hands_over_nothing():
    workers = [a_prefill_view("p0"), a_decode_view("d0", connected="p0"), a_decode_view("d1", connected="p0")]
    suspects = frozenset({(WorkerId("p0"), WorkerId("d0"))})
    answers = [place(a_placement_request(), workers, turn, suspects) for turn in range(4)]
    assert {answer.decode for answer in answers if isinstance(answer, Placement)} == {"d1"}
    answer = place(a_placement_request(), workers[:2], 0, suspects)
    assert isinstance(answer, Placement)
    assert answer.path is ALONE


def test_request_is_refused_when_it_failed_on_every_decode_worker():
    answer = place(a_placement_request(excluded=ids("d0 d1")), [a_decode_view("d0"), a_decode_view("d1")], turn=0)
    assert isinstance(answer, Rejection)


def test_pair_with_the_fewest_open_requests_wins():
    prefills = [a_prefill_view("p0", num_placed=2), a_prefill_view("p1", num_placed=1)]
    decodes = [a_decode_view("d0", 1, connected="p0 p1"), a_decode_view("d1", 0, connected="p0")]
    answer = placed(a_placement_request(), *prefills, *decodes)
    assert (answer.prefill, answer.decode) in {("p1", "d0"), ("p0", "d1")}
    answer = placed(a_placement_request(), prefills[1], *decodes)
    assert (answer.prefill, answer.decode) == ("p1", "d0")


def test_least_loaded_decode_worker_wins_on_path_d():
    workers = [a_decode_view("d0", 3), a_decode_view("d1", 1), a_decode_view("d2", 2)]
    answers = {placed(a_placement_request(path=ALONE), *workers, turn=turn).decode for turn in range(6)}
    assert answers == {"d1"}


def test_workers_under_equal_load_take_turns():
    workers = [a_decode_view(f"d{i}") for i in range(3)]
    answers = [placed(a_placement_request(path=ALONE), *workers, turn=turn).decode for turn in range(6)]
    assert answers == ["d0", "d1", "d2"] * 2


HOLDERS = [a_prefill_view("p0"), a_decode_view("d0"), a_decode_view("d1", num_placed=STICKY_REQUESTS)]


@pytest.mark.parametrize(
    ("num_missing", "path"), [(1, ALONE), (LOCAL_TOKENS, ALONE), (LOCAL_TOKENS + 1, PAIR)], ids=str
)
def test_worker_that_holds_the_prompt_computes_the_little_that_is_missing(num_missing, path):
    request = a_placement_request(num_prompt_tokens=1000)
    answer = place(request, HOLDERS, 0, held=Held(WorkerId("d1"), 1000 - num_missing))
    assert isinstance(answer, Placement)
    assert (answer.path, answer.decode) == (path, "d1")


def test_worker_with_much_more_to_do_is_not_waited_for():
    busy = a_decode_view("d1", num_placed=STICKY_REQUESTS + 1)
    request = a_placement_request(num_prompt_tokens=1000)
    answer = place(request, [*HOLDERS[:2], busy], 0, held=Held(WorkerId("d1"), 999))
    assert isinstance(answer, Placement)
    assert (answer.path, answer.decode) == (PAIR, "d0")


def test_path_that_is_asked_for_goes_to_the_worker_that_holds_the_prompt():
    held = Held(WorkerId("d1"), 999)
    answers = [
        place(a_placement_request(num_prompt_tokens=1000, path=path), HOLDERS, 0, held=held) for path in (PAIR, ALONE)
    ]
    assert [(a.path, a.decode) for a in answers if isinstance(a, Placement)] == [(PAIR, "d1"), (ALONE, "d1")]
