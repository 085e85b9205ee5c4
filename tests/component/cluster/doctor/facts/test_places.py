"""What `baton doctor` finds on a real file system and at real ports."""

import json
import os
import socket
from pathlib import Path

import pytest

from cluster.config.application import AppConfig, parse
from cluster.doctor.facts.places import (
    disk_facts,
    key_files,
    model_facts,
    network_error,
    port_facts,
    resolved_names,
    secret_refusals,
    state_urls,
)


def a_config(**args: object) -> AppConfig:
    return parse({"model": "demo", **args})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"12345")
    return tmp_path


def index(model: Path, *shards: str) -> None:
    text = json.dumps({"weight_map": {f"w{number}": shard for number, shard in enumerate(shards)}})
    (model / "model.safetensors.index.json").write_text(text)


def test_complete_model(model: Path) -> None:
    facts = model_facts(str(model))
    assert (facts.missing, facts.weights_bytes, facts.error) == ([], 5, "")


def test_shards_that_are_missing_or_empty_are_named(model: Path) -> None:
    (model / "empty.safetensors").touch()
    index(model, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert model_facts(str(model)).missing == ["empty.safetensors", "model-00002-of-00002.safetensors"]


def test_index_leads_nowhere_else(model: Path) -> None:
    index(model, "../../../../etc/passwd")
    assert model_facts(str(model)).missing == ["../../../../etc/passwd"]


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", '{"weight_map": 3}'])
def test_files_that_are_no_json_are_errors_and_no_crash(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    facts = model_facts(str(model))
    assert facts.error or text == '{"weight_map": 3}'


def test_empty_folder_lacks_everything(tmp_path: Path) -> None:
    assert model_facts(str(tmp_path)).missing == ["config.json", "a tokenizer", "weights (*.safetensors)"]


def test_hub_model_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert model_facts("Qwen/Qwen3-8B").folder is None
    snapshot = tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    assert model_facts("Qwen/Qwen3-8B").folder == str(snapshot)


def test_port_that_is_taken_names_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        taken, free = port_facts(a_config(ingress={"port": port}, admin={"port": _free_port()}))
    assert taken.error
    assert f"(process {os.getpid()})" in taken.taken_by
    assert (free.error, free.taken_by) == ("", "")


def test_key_files_and_disks_of_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "admin-key").write_text("x")
    (tmp_path / "admin-key").chmod(0o640)
    config = a_config(
        state={"data_dir": str(tmp_path)},
        decode={"tiers": {"dram_gib": 1, "disk": {"path": str(tmp_path / "new" / "deep"), "gib": 5}}},
    )
    assert [file.mode for file in key_files(config)] == [0o640, None]
    data, tier = disk_facts(config)
    assert data.free_bytes > 0 and data.is_writable
    assert (tier.key, tier.needed_bytes) == ("decode.tiers.disk", 5 << 30)


def test_names_of_urls_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_REDIS_URL", "redis://:secret@localhost:6379/0")
    config = a_config(state={"database_url": "postgresql://user:secret@no-such-host.invalid/name"})
    names = resolved_names(config)
    assert names["localhost"] is not None
    assert names["no-such-host.invalid"] is None
    assert "secret" not in str(names)
    assert {*state_urls(config)} == {"database_url", "redis_url"}


def test_interface_that_is_not_there_is_an_error() -> None:
    assert "eth99" in network_error(a_config(network={"host": "eth99"}))
    assert network_error(a_config()) == ""


def test_short_secret_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_CLUSTER_SECRET", "hunter2")
    (why,) = secret_refusals().values()
    assert "7 characters" in why
    assert "hunter2" not in why


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
