"""The settings of the Ray that `baton serve` starts."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from cluster.cli.serve.ray_settings import QUIET_RAY, ray_environment
from cluster.config.application import AppConfig

FILES = (
    "_raylet.so",
    "_private/log_monitor.py",
    "dashboard/consts.py",
    "dashboard/modules/reporter/reporter_consts.py",
    "serve/_private/constants.py",
)
"""Files of Ray that read settings."""


@pytest.mark.parametrize("name", QUIET_RAY)
def test_ray_has_the_setting(name: str) -> None:
    """A setting that Ray does not have would do nothing, and nobody would notice."""
    found = find_spec("ray")
    assert found is not None and found.origin is not None
    of_core = name.removeprefix("RAY_")
    wanted = of_core.encode() if of_core.islower() else name.encode()
    assert any(wanted in (Path(found.origin).parent / file).read_bytes() for file in FILES)


def test_what_the_operator_sets_wins() -> None:
    name = "RAY_SERVE_CONTROL_LOOP_INTERVAL_S"
    assert ray_environment(AppConfig(model="a/model"), {name: "0.1"}) == {
        **ray_environment(AppConfig(model="a/model"), {}),
        name: "0.1",
    }
