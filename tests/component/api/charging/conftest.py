from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api.charging.accounting import Accounting
from api.server.receipt_log import ReceiptLog
from api.state.lifecycle import ChatState
from cluster.config.application import AppConfig, parse
from cluster.metrics.page import Scrape
from tests.component.emptied import emptied


@pytest.fixture
def config(postgres: str, tmp_path: Path) -> AppConfig:
    state = {"database_url": postgres, "data_dir": str(tmp_path), "titles": False}
    engine: dict[str, Any] = {"max_model_len": 4096, "dtype": "bfloat16", "enforce_eager": True}
    return parse({"model": "conf/models/baton-demo", "state": state, "engine": engine})


@pytest.fixture
async def state(postgres: str, config: AppConfig) -> AsyncIterator[ChatState]:
    emptied(postgres)
    state = ChatState(config.state, serves=True)
    await state.look()
    await state.look_for_redis()
    yield state
    await state.close()


async def no_scrapes() -> list[Scrape]:
    return []


@pytest.fixture
async def accounting(config: AppConfig, state: ChatState) -> AsyncIterator[Accounting]:
    accounting = Accounting(config, state, "i0", ReceiptLog(0), no_scrapes)
    accounting.start()
    yield accounting
    await accounting.close(1.0)
