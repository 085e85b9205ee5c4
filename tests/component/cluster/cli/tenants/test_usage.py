"""`baton usage` on a real PostgreSQL."""

import asyncio
import json
import time
from pathlib import Path

import pytest
import yaml

from api.state.postgres.accounts.tenant_accounts import TenantAccounts
from api.state.postgres.database import Database
from api.state.postgres.ledger.ledger_store import LedgerStore
from cluster.cli.main import argument_parser
from tests.architecture.sources import ROOT
from tests.component.emptied import emptied
from tests.unit.usage_rows import TENANT, a_row

OTHER = "f" * 16


@pytest.fixture
def conf(postgres: str, tmp_path: Path) -> Path:
    config = yaml.safe_load((ROOT / "conf/local.yaml").read_text())
    state = {"database_url": postgres, "data_dir": str(tmp_path), "redis_url": "redis://127.0.0.1:1/0"}
    config["applications"][0]["args"]["state"] = state
    file = tmp_path / "conf.yaml"
    file.write_text(yaml.safe_dump(config))
    emptied(postgres)
    asyncio.run(filled(postgres))
    return file


async def filled(url: str) -> None:
    database = Database(url, 2)
    await database.open()
    await database.migrate()
    now_ms = int(time.time() * 1000)
    rows = [
        a_row(now_ms, cost_micros=2_500_000),
        a_row(now_ms - 86_400_000, cost_micros=1),
        a_row(now_ms, tenant_id=OTHER, model="big"),
        a_row(now_ms, attempt=0, outcome="lost", currency="usd"),
        a_row(now_ms - 30 * 86_400_000),
    ]
    await LedgerStore(database).write([], [], rows)
    await database.close()


def run(*arguments: str) -> int:
    parsed = argument_parser().parse_args(["usage", *arguments])
    status: int = parsed.run(parsed)
    return status


def test_table_has_a_line_for_each_group(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--conf", str(conf)) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["tenant", "model", "requests", "lost", "prompt", "cached", "generated", "reasoning", "cost", "currency"],
        [TENANT, "baton-demo", "2", "1", "20", "8", "10", "0", "2.500001", "usd"],
        [OTHER, "big", "1", "0", "10", "4", "5", "0", "0.000007", "usd"],
    ]


def test_json_has_a_line_for_each_group(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--conf", str(conf), "--json", "--by", "day", "--days", "2", "--tenant", TENANT) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["requests"], line["lost"], line["cost"]) for line in lines] == [(1, 0, 1e-06), (1, 1, 2.5)]
    assert lines[1]["day"] == time.strftime("%Y-%m-%d", time.gmtime())


async def named(url: str, name: str) -> None:
    database = Database(url, 2)
    await database.open()
    await TenantAccounts(database).create(name, "a test", adopted=TENANT)
    await database.close()


def test_tenant_is_found_by_its_name(conf: Path, postgres: str, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(named(postgres, "search team"))
    assert run("--conf", str(conf), "--json", "--by", "tenant", "--tenant", "search team") == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["tenant"], line["requests"]) == (TENANT, 2)


def test_tenant_without_account_is_found_by_its_id(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--conf", str(conf), "--json", "--by", "tenant", "--tenant", OTHER) == 0
    assert json.loads(capsys.readouterr().out)["tenant"] == OTHER


def test_unknown_tenant_is_an_error(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--conf", str(conf), "--tenant", "nobody") == 1
    assert "nobody" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "wrong"), [(["--days", "0"], "no number of days"), (["--by", "colour"], "'colour' is none of day")]
)
def test_wrong_option_says_what_is_allowed(
    arguments: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(*arguments)
    assert wrong in capsys.readouterr().err


def test_config_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--conf", "/nowhere.yaml") == 1
    assert "/nowhere.yaml" in capsys.readouterr().err
