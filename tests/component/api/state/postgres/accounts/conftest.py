"""Accounts in an empty database."""

from collections.abc import AsyncIterator

import pytest

from tests.component.accounts import Accounts, accounts_at
from tests.component.emptied import emptied


@pytest.fixture
async def accounts(postgres: str) -> AsyncIterator[Accounts]:
    emptied(postgres)
    async with accounts_at(postgres) as found:
        yield found
