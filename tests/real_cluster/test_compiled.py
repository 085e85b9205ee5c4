"""A service that is started as its users start it decides with machine code."""

from pathlib import Path

import pytest

from cluster.cli.compile import what_is_missing
from cluster.compiled import LIBRARY, file_of, folder
from tests.real_cluster.service import SCHEDULER_PROCESS, Service


@pytest.mark.skipif(what_is_missing() is not None, reason="nothing can be compiled here")
def test_scheduler_runs_what_was_compiled(service: Service) -> None:
    loaded = {Path(mapped.path) for mapped in service.process(SCHEDULER_PROCESS).memory_maps()}
    assert file_of(LIBRARY, folder()) in loaded, "`baton compile` comes first"
