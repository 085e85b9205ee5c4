"""The garbage collector is off for a while, and then as it was."""

import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest

from cluster.uncollected import uncollected


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_collector_is_paused_and_then_as_it_was(is_enabled: bool, fails: bool) -> None:
    (gc.enable if is_enabled else gc.disable)()
    with suppress(OSError), uncollected():
        assert not gc.isenabled()
        if fails:
            raise OSError
    assert gc.isenabled() is is_enabled
