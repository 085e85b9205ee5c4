"""Which links are of one class, and when a class is measured."""

from math import inf, nan

import msgspec
import pytest

from cluster.messages.reports import EngineShape, WorkerReport
from cluster.messages.transport import EngineVariable, LinkSpeed, WorkerTransport
from router.links.link_classes import LONGEST_S, MEASURE_AGAIN_S, NUM_TRIES, SETTLE_S, TRY_AGAIN_S, LinkClasses
from tests.unit.factories import a_prefill_report

CLASS, OTHER = (0, 1, True), (0, 1, False)
SPEED, LATER_SPEED = LinkSpeed(0.001, 1e9), LinkSpeed(0.002, 1e9)


def a_report(name: str, kind: str = "k", tls: str | None = "tcp", why: str = "") -> WorkerReport:
    transport = WorkerTransport(settings=(EngineVariable("UCX_TLS", tls, why),))
    return msgspec.structs.replace(a_prefill_report(name), shape=EngineShape(kind=kind), transport=transport)


def test_nodes_are_of_one_class_if_engines_and_transports_are_alike() -> None:
    classes = LinkClasses()
    one = classes.node_class(a_report("p0"))
    assert classes.node_class(a_report("p1", why="other words")) == one
    others = [a_report("p2", kind="other"), a_report("p3", tls="rc"), a_report("p4", tls=None)]
    assert len({one, *[classes.node_class(report) for report in others]}) == 4


def test_class_is_measured_once_and_again_after_a_long_time() -> None:
    classes = LinkClasses()
    classes.add(CLASS, None, 0.0)
    assert [classes.is_due(CLASS, now) for now in (SETTLE_S - 0.1, SETTLE_S)] == [False, True]
    classes.begin(CLASS, 2.0)
    assert not classes.is_due(CLASS, 3.0), "one worker measures it"
    assert classes.end(CLASS, SPEED, 4.0)
    assert classes.speed(CLASS) == SPEED
    assert [classes.is_any_due(now) for now in (4.0 + MEASURE_AGAIN_S - 1, 4.0 + MEASURE_AGAIN_S)] == [False, True]
    classes.begin(CLASS, 4000.0)
    assert classes.end(CLASS, LATER_SPEED, 4001.0)
    assert classes.speed(CLASS) == LATER_SPEED


def test_speed_that_a_worker_has_measured_before_is_taken_and_nothing_is_measured() -> None:
    classes = LinkClasses()
    assert not classes.add(CLASS, None, 0.0)
    assert classes.add(CLASS, SPEED, 0.5)
    assert not classes.add(CLASS, LATER_SPEED, 0.6), "it may be older"
    assert classes.speed(CLASS) == SPEED
    assert not classes.is_any_due(MEASURE_AGAIN_S)


def test_failed_measurement_is_tried_again_and_then_left_for_long() -> None:
    classes = LinkClasses()
    now = 0.0
    for _ in range(NUM_TRIES - 1):
        classes.begin(CLASS, now)
        assert not classes.end(CLASS, None, now)
        assert not classes.is_due(CLASS, now + TRY_AGAIN_S - 0.1)
        now += TRY_AGAIN_S
        assert classes.is_due(CLASS, now)
    classes.begin(CLASS, now)
    classes.end(CLASS, None, now)
    assert [classes.is_due(CLASS, now + after) for after in (TRY_AGAIN_S, MEASURE_AGAIN_S)] == [False, True]


def test_failed_measurement_keeps_the_speed_that_is_known() -> None:
    classes = LinkClasses()
    classes.add(CLASS, SPEED, 0.0)
    classes.begin(CLASS, 5000.0)
    assert not classes.end(CLASS, None, 5001.0)
    assert classes.speed(CLASS) == SPEED


def test_measurement_whose_worker_is_gone_is_tried_again() -> None:
    classes = LinkClasses()
    classes.begin(CLASS, 0.0)
    assert [classes.is_due(CLASS, now) for now in (LONGEST_S - 0.1, LONGEST_S)] == [False, True]


def test_classes_are_due_one_by_one() -> None:
    classes = LinkClasses()
    classes.add(CLASS, None, 0.0)
    classes.add(OTHER, None, 10.0)
    classes.begin(CLASS, SETTLE_S)
    assert [classes.is_any_due(now) for now in (5.0, 10.0 + SETTLE_S)] == [False, True]
    assert not classes.is_due(CLASS, 10.0 + SETTLE_S)


@pytest.mark.parametrize("speed", [LinkSpeed(nan, 1e9), LinkSpeed(0.0, 0.0), LinkSpeed(0.0, inf), LinkSpeed(-1.0, 1e9)])
def test_speed_without_a_meaning_is_not_taken(speed: LinkSpeed) -> None:
    classes = LinkClasses()
    assert not classes.add(CLASS, speed, 0.0)
    assert not classes.end(CLASS, speed, 1.0)
    assert classes.speed(CLASS) is None
