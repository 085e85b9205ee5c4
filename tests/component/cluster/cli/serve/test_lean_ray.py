"""The part of Ray's dashboard that `baton serve` starts."""

import inspect
from pathlib import Path

import pytest
from ray._private import services

from cluster.cli.serve.lean_ray import MODULES, lean

DASHBOARD = Path(services.RAY_PATH) / "dashboard"


def test_dashboard_is_told_its_modules_and_no_other_process_is() -> None:
    started: list[list[str]] = []
    start = lean(lambda command, process_type, **_: started.append(command))
    start(["dashboard.py", "--port=8265"], "dashboard", fate_share=True)
    start(["log_monitor.py"], "log_monitor", fate_share=True)
    assert started == [["dashboard.py", "--port=8265", f"--modules-to-load={','.join(MODULES)}"], ["log_monitor.py"]]


def test_ray_starts_its_processes_with_the_function_that_is_replaced() -> None:
    assert list(inspect.signature(services.start_ray_process).parameters)[:2] == ["command", "process_type"]
    assert "start_ray_process(\n            command,\n" in inspect.getsource(services.start_api_server)


def test_dashboard_has_the_option() -> None:
    assert '"--modules-to-load"' in (DASHBOARD / "dashboard.py").read_text()


@pytest.mark.parametrize("name", MODULES)
def test_dashboard_has_the_module(name: str) -> None:
    """One that Ray does not have would be left out without an error."""
    assert any(f"class {name}(" in file.read_text() for file in DASHBOARD.glob("modules/*/*_head.py"))
