import msgspec

from cluster.engine_core.retention_log import INTERVAL_S, RETENTION_KEY, RetentionLog, counts_in
from cluster.messages.retention import RetentionCounts


def test_counts_are_told_when_they_have_changed_and_at_most_once_in_an_interval() -> None:
    log, counts = RetentionLog(), RetentionCounts()
    assert log.take(100.0) == []
    log.tell(lambda: msgspec.structs.replace(counts))
    assert log.take(100.0) == []
    counts.returned = 2
    assert log.take(100.5) == []
    assert counts_in({RETENTION_KEY: log.take(100.0 + INTERVAL_S)}) == RetentionCounts(returned=2)
    assert log.take(100.0 + 3 * INTERVAL_S) == []


def test_statistics_without_counts_have_none() -> None:
    assert counts_in({}) is None
    assert counts_in({RETENTION_KEY: []}) is None
