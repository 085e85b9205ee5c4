"""A change of the service that PostgreSQL loses while it is made."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from api.state.postgres.accounts import service_changes
from api.state.postgres.accounts.service_changes import ServiceChanges
from api.state.postgres.database import Database
from cluster.errors import StateUnavailable


class _Transaction:
    async def run(self, *_: object) -> None:
        pass

    note = run


@asynccontextmanager
async def lost_at_commit(*_: object) -> AsyncIterator[_Transaction]:
    yield _Transaction()
    raise StateUnavailable("PostgreSQL is away", 2.0)


@pytest.mark.parametrize("is_changed", [True, False])
async def test_change_that_has_effect_and_may_not_be_logged_is_in_the_log_of_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_changed: bool
) -> None:
    async def change() -> bool:
        if not is_changed:
            raise StateUnavailable("Ray is away", 2.0)
        return True

    monkeypatch.setattr(service_changes, "change_of", lost_at_commit)
    with pytest.raises(StateUnavailable):
        await ServiceChanges(Database.__new__(Database)).logged("ann", "worker.drain", "d0", change)
    assert ("worker.drain of d0 by ann has effect" in caplog.text) is is_changed
