"""Checks run beside each other, and none keeps the others from their findings."""

import threading
from collections.abc import Iterator
from pathlib import Path

from cluster.doctor.checks import Examinee, MachineCheck
from cluster.doctor.examination import examined
from cluster.doctor.finding import CheckFinding, CheckResult, ok

NOTHING = Examinee(conf=Path("absent"), config=None)


def a_check(name: str, run: object, **fields: object) -> MachineCheck:
    return MachineCheck(name=name, run=run, needs_config=False, **fields)  # type: ignore[arg-type]  # any function


def test_check_that_hangs_or_fails_is_a_finding_and_the_others_go_on() -> None:
    ends = threading.Event()

    def hangs(_: Examinee) -> Iterator[CheckFinding]:
        ends.wait()
        yield ok("hangs", "it has ended")

    def breaks(_: Examinee) -> Iterator[CheckFinding]:
        yield ok("breaks", "half of it")
        raise OSError("a defect")

    checks = [
        a_check("hangs", hangs, bound_s=0.05),
        a_check("breaks", breaks),
        a_check("works", lambda _: [ok("works", "well")]),
    ]
    try:
        (hanging,), (broken,), (working,) = examined(NOTHING, checks)
    finally:
        ends.set()
    assert (hanging.check, hanging.result) == ("hangs", CheckResult.UNKNOWN)
    assert "0.05 s" in hanging.found
    assert (broken.result, "a defect" in broken.found) == (CheckResult.UNKNOWN, True)
    assert working.result is CheckResult.OK


def test_checks_run_beside_each_other() -> None:
    """Each waits for the other."""
    both = threading.Barrier(2)
    meets = [a_check(name, lambda _: [ok("met", f"{both.wait(5)}")]) for name in ("a", "b")]
    assert [one.result for several in examined(NOTHING, meets) for one in several] == [CheckResult.OK] * 2


def test_checks_that_need_a_config_are_left_out_without_one() -> None:
    check = MachineCheck(name="ports", run=lambda _: [ok("ports", "free")])
    assert list(examined(NOTHING, [check])) == []
