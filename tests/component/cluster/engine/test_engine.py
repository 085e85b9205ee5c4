"""An engine whose tokens do not come any more."""

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from cluster.engine.engine import Engine
from tests.component.cluster.engine.test_token_tap import Tapped, first


async def test_lost_pipe_fails_what_runs_and_the_health_of_the_worker() -> None:
    tapped = Tapped()
    sink, _ = tapped.add("a")
    tapped.step(first("a"))
    engine = Engine.__new__(Engine)  # without vLLM behind it
    engine._tap, engine._has_lost_pipe = tapped.tap, False
    engine._on_lost_pipe()
    assert sink.error is not None and tapped.tap.num_running == 0
    with pytest.raises(EngineDeadError):
        await engine.check_health()
