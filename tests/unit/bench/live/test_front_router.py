"""How the load generator chooses among the servers of a system without a router."""

from bench.live.front_router import STICKY_REQUESTS, FrontRouter


def test_fewest_open_requests_are_chosen_in_turn() -> None:
    router = FrontRouter([1, 2, 3], is_sticky=False)
    assert [router.opened("a") for _ in range(6)] == [1, 2, 3, 1, 2, 3]
    router.closed(2)
    assert router.opened("a") == 2


def test_conversation_stays_until_its_server_has_clearly_more_requests() -> None:
    router = FrontRouter([1, 2])
    assert [router.opened("a") for _ in range(STICKY_REQUESTS + 1)] == [1] * (STICKY_REQUESTS + 1)
    assert router.opened("a") == 2
    router.closed(2)
    assert router.opened("a") == 2
