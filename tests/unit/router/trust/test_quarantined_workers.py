from cluster.messages.ids import WorkerId
from router.trust.quarantined_workers import KEPT_S, QuarantinedWorkers

D0 = {WorkerId("d0"): "wrong"}


def test_replica_that_has_lost_its_lease_ends_no_quarantine_of_the_one_that_has_it() -> None:
    told = QuarantinedWorkers()
    for now in range(0, 300, 10):
        late = told.told({}, float(now), lease=3)
        assert (late.begun, late.ended) == ({}, [])
        told.told(D0, now + 5.0, lease=4)
        assert told.of(now + 5.0) == D0


def test_later_lease_replaces_what_an_earlier_one_has_told_at_once() -> None:
    told = QuarantinedWorkers()
    told.told(D0, 0.0, lease=3)
    assert told.told({}, 1.0, lease=4).ended == ["d0"]
    assert told.told(D0, 2.0, lease=3).begun == {}


def test_lower_number_is_heeded_again_when_the_higher_one_is_silent_for_long() -> None:
    told = QuarantinedWorkers()
    told.told({}, 0.0, lease=7)
    assert told.told(D0, KEPT_S - 1.0, lease=1).begun == {}
    assert told.told(D0, KEPT_S, lease=1).begun == D0
    assert told.told({}, KEPT_S + 1.0, lease=1).ended == ["d0"]


def test_replicas_without_redis_have_no_number_and_are_heeded() -> None:
    told = QuarantinedWorkers()
    assert told.told(D0, 0.0).begun == D0
    assert told.told({}, 1.0).ended == ["d0"]
