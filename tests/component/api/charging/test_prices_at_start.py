"""An ingress replica does not start with prices of which the served model has none."""

from pathlib import Path

import pytest

from api.charging.accounting import Accounting
from api.server.receipt_log import ReceiptLog
from api.state.lifecycle import ChatState
from cluster.config.application import parse
from cluster.metrics.page import Scrape

PRICES = """
currency: usd
versions:
- {version: v1, valid_from: 2020-01-01, models: {sold: {input: 1, output: 1}}}
"""


async def no_scrapes() -> list[Scrape]:
    return []


async def started(folder: Path, model: str) -> None:
    (folder / "prices.yaml").write_text(PRICES)
    state = {"data_dir": str(folder), "database_url": "postgresql://baton@127.0.0.1:1/baton"}
    config = parse({"model": model, "state": state, "metering": {"prices": str(folder / "prices.yaml")}})
    accounting = Accounting(config, ChatState(config.state, serves=True), "i0", ReceiptLog(0), no_scrapes)
    assert accounting.charging.has_prices
    await accounting.close(0.0)


async def test_served_model_needs_a_price(tmp_path: Path) -> None:
    await started(tmp_path, "sold")
    with pytest.raises(ValueError, match=r"prices.yaml: version v1 has no prices for the served model 'renamed'"):
        await started(tmp_path, "renamed")
