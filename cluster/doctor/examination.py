"""Runs checks beside each other, each bounded in time. A check that hangs, or fails by a defect, is a finding."""

import queue
import threading
import time
from collections.abc import Iterator, Sequence

from cluster.doctor.checks import Examinee, MachineCheck
from cluster.doctor.finding import CheckFinding, unknown

HANGS = "is it a file system, a driver or a server that hangs? The other checks may name it"


def examined(subject: Examinee, checks: Sequence[MachineCheck]) -> Iterator[list[CheckFinding]]:
    """The findings of each check, in the order of the checks. A check that takes longer than its bound is left alone:
    it ends with the process.
    """
    running = [_begun(check, subject) for check in checks if subject.config is not None or not check.needs_config]
    for check, answer, began_at in running:
        try:
            yield answer.get(timeout=max(0.0, began_at + check.bound_s - time.monotonic()))
        except queue.Empty:
            yield [unknown(check.name, f"it has not ended after {check.bound_s:g} s", HANGS)]


def _begun(check: MachineCheck, subject: Examinee) -> tuple[MachineCheck, "queue.Queue[list[CheckFinding]]", float]:
    answer = queue.Queue[list[CheckFinding]](maxsize=1)
    threading.Thread(target=lambda: answer.put(_result(check, subject)), daemon=True).start()
    return check, answer, time.monotonic()


def _result(check: MachineCheck, subject: Examinee) -> list[CheckFinding]:
    try:
        return list(check.run(subject))
    except Exception as error:  # a check must not end the others
        return [unknown(check.name, f"the check has failed: {type(error).__name__}: {error}")]
