"""Jobs that run again and again, whatever one run ends with."""

import asyncio
from typing import Any

import pytest

from api.metering import metering_jobs
from api.metering.metering_jobs import MeteringJobs
from cluster.errors import StateUnavailable


class FakeJob:
    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.num_runs = 0
        self.has_run_again = asyncio.Event()
        self.is_closed = False

    async def run(self) -> None:
        self.num_runs += 1
        if self.failures:
            raise self.failures.pop(0)
        self.has_run_again.set()

    async def close(self) -> None:
        self.is_closed = True


async def test_failures_of_one_job_end_neither_it_nor_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("UPKEEP_INTERVAL_S", "PUBLISH_INTERVAL_S", "RECONCILE_INTERVAL_S"):
        monkeypatch.setattr(metering_jobs, name, 0.001)
    fakes: list[Any] = [FakeJob(), FakeJob(StateUnavailable("away", 1.0)), FakeJob(OSError("a defect"), OSError())]
    jobs = MeteringJobs(fakes[0], fakes[1].run, fakes[2])
    jobs.start()
    async with asyncio.timeout(10):
        await asyncio.gather(*(fake.has_run_again.wait() for fake in fakes))
    await jobs.close()
    assert fakes[2].is_closed
    assert [fake.num_runs > 1 for fake in fakes[1:]] == [True, True]
    assert caplog.text.count("a job of metering has failed") == 2
    num_runs = [fake.num_runs for fake in fakes]
    await asyncio.sleep(0.01)
    assert [fake.num_runs for fake in fakes] == num_runs
