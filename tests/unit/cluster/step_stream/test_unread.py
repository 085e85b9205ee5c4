from cluster.messages.ids import WorkerId
from cluster.step_stream.unread import MAX_WORKERS, UnreadTokens


def test_tokens_are_counted_by_worker() -> None:
    unread = UnreadTokens()
    unread.add(WorkerId("d0"), 2)
    unread.add(WorkerId("d0"), 3)
    assert (unread.of(WorkerId("d0")), unread.of(WorkerId("d1"))) == (5, 0)


def test_workers_that_were_counted_first_are_forgotten_when_there_are_too_many() -> None:
    unread = UnreadTokens()
    for number in range(MAX_WORKERS + 1):
        unread.add(WorkerId(f"d{number}"), 1)
    assert (unread.of(WorkerId("d0")), unread.of(WorkerId("d1")), unread.of(WorkerId(f"d{MAX_WORKERS}"))) == (0, 1, 1)
