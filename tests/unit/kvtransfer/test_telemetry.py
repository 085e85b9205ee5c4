from kvtransfer.telemetry import PULLS_KEY, Pull, PullLog, Transfer, TransferLog


def nixl_stats(*transfers: tuple[int, float]) -> dict[str, list[float]]:
    """As vLLM's NixlKVConnectorStats has them."""
    return {
        "transfer_duration": [duration_s for _, duration_s in transfers],
        "post_duration": [0.001 for _ in transfers],
        "bytes_transferred": [num_bytes for num_bytes, _ in transfers],
        "num_failed_transfers": [],
    }


def test_transfers_of_every_step_are_kept_in_order() -> None:
    log = TransferLog()
    log.record(nixl_stats((100, 0.1)))
    log.record(nixl_stats((200, 0.2), (300, 0.3)))
    assert log.num_recorded == 3
    assert log.since(1) == [Transfer(200, 0.2), Transfer(300, 0.3)]
    assert log.since(3) == []


def test_step_without_transfers_adds_nothing() -> None:
    log = TransferLog()
    for stats in ({}, nixl_stats()):
        log.record(stats)
    assert log.num_recorded == 0


def test_log_forgets_what_nobody_can_still_want() -> None:
    log = TransferLog()
    for number in range(5000):
        log.record(nixl_stats((number, 0.1)))
    assert [transfer.num_bytes for transfer in log.since(4998)] == [4998, 4999]
    assert len(log.since(0)) < 5000


def test_pull_is_told_once() -> None:
    log = PullLog()
    log.record({PULLS_KEY: [["a", [0.1]], ["b", [0.2]]]})
    log.record({})
    assert (log.pop("b"), log.pop("b"), log.pop("a")) == (Pull(0.2), None, Pull(0.1))


def test_pulls_that_nobody_asks_for_are_forgotten() -> None:
    log = PullLog()
    for number in range(5000):
        log.record({PULLS_KEY: [[str(number), [0.1]]]})
    assert log.pop("0") is None
    assert log.pop("4999") == Pull(0.1)
