from pathlib import Path
from typing import Any

import pytest

from cluster.cli.serve.command import configured


def a_serve_config(**application: object) -> dict[str, object]:
    return {"applications": [{"import_path": "cluster.app:build", "args": {"model": "org/model"}} | application]}


def test_serves_own_proxy_is_not_started_because_the_ingress_listens_itself() -> None:
    assert configured(a_serve_config(), {}, None)["proxy_location"] == "Disabled"


def test_port_of_the_command_line_wins() -> None:
    config = a_serve_config(args={"model": "m", "ingress": {"port": 8100, "cpus": 2}})
    assert configured(config, {"ingress": 9000}, None)["applications"][0]["args"]["ingress"] == {
        "port": 9000,
        "cpus": 2,
    }
    assert configured(config, {}, None)["applications"][0]["args"]["ingress"] == {"port": 8100, "cpus": 2}


def test_admin_port_of_the_command_line_wins() -> None:
    config = a_serve_config(args={"model": "m", "admin": {"port": 8101, "key_required": False}})
    ports = {"ingress": None, "admin": 9001}
    assert configured(config, ports, None)["applications"][0]["args"] == {
        "model": "m",
        "admin": {"port": 9001, "key_required": False},
    }


def test_model_of_the_command_line_wins() -> None:
    args = configured(a_serve_config(), {}, "other/model")["applications"][0]["args"]
    assert args == {"model": "other/model"}


def test_model_folder_is_found_from_wherever_the_engines_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    args = configured(a_serve_config(), {}, "mine")["applications"][0]["args"]
    assert args == {"model": str(tmp_path / "mine")}


def test_command_line_leaves_the_given_config_as_it_was() -> None:
    config = a_serve_config()
    configured(config, {"ingress": 9000}, "other/model")
    assert config == a_serve_config()


@pytest.mark.parametrize("config", [None, [], {}, {"applications": []}, {"applications": [{}, {}]}], ids=str)
def test_config_without_exactly_one_application_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="exactly one application"):
        configured(config, {}, None)


def test_invalid_args_are_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="unknown field `modle`"):
        configured(a_serve_config(args={"model": "m", "modle": "n"}), {}, None)


def test_args_may_come_from_the_command_line_alone() -> None:
    config = configured(a_serve_config(args=None), {}, "org/model")
    assert config["applications"][0]["args"] == {"model": "org/model"}


def test_model_folder_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="/no/such/model"):
        configured(a_serve_config(), {}, "/no/such/model")
