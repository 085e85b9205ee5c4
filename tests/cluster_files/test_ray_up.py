"""The files for `ray up`: Ray accepts them, and what they copy, read and run is there."""

import copy
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ray.autoscaler._private.util import prepare_config, validate_config

from cluster.config import environment
from tests.cluster_files.node_types import CLOUDS, RAY_UP, REQUIRED, ROOT, ray_up

SECRETS = {"conf/ray-up/cluster.env", "conf/ray-up/tls", "conf/kuberay/cluster.env"}
CERTIFICATE = ("tls.crt", "tls.key", "ca.crt")


def misspelt(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The config with one key misspelt."""
    changed = copy.deepcopy(config)
    *way, key = path
    section = changed
    for step in way:
        section = section[step]
    section[key + "s"] = section.pop(key)
    return changed


def validate(config: dict[str, Any]) -> None:
    validate_config(prepare_config(copy.deepcopy(config)))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_ray_accepts_the_file(cloud: str) -> None:
    validate(ray_up(cloud))


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    "path",
    [
        ("file_mounts",),
        ("worker_start_ray_commands",),
        ("auth", "ssh_user"),
        ("available_node_types", "prefill", "resources"),
        ("available_node_types", "decode", "node_config"),
        ("available_node_types", "ingress", "worker_setup_commands"),
    ],
    ids=lambda path: path[-1],
)
def test_ray_refuses_a_misspelt_key(cloud: str, path: tuple[str, ...]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate(misspelt(ray_up(cloud), path))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_what_is_copied_to_the_nodes_is_what_is_installed(cloud: str) -> None:
    mounts = ray_up(cloud)["file_mounts"]
    assert mounts.pop("~/cluster.env") == "conf/ray-up/cluster.env"
    assert mounts == {f"~/baton/{local}": local for local in mounts.values()}
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert set(mounts.values()) == {name.rstrip("*") for name in packages} | {"Makefile", "pyproject.toml", "conf"}


def test_image_copies_what_is_copied_to_the_nodes() -> None:
    copied = re.findall(r"(?m)^COPY (.+) \S+$", (ROOT / "conf/kuberay/Dockerfile").read_text())
    mounts = set(ray_up("aws")["file_mounts"].values()) - {"conf/ray-up/cluster.env"}
    assert {name for line in copied for name in line.split()} == mounts


def test_secrets_of_an_operator_get_into_no_commit_and_no_image() -> None:
    ignored = {name.strip("/") for name in (ROOT / ".gitignore").read_text().splitlines()}
    left_out = {name for name in (ROOT / ".dockerignore").read_text().splitlines() if not name.startswith("#")}
    assert left_out == {*SECRETS, "**/*.key"}
    assert {*SECRETS, "*.key"} <= ignored


@pytest.mark.parametrize("cloud", CLOUDS)
def test_files_that_commands_run_or_read_exist(cloud: str) -> None:
    named = re.findall(r"~/baton/([\w./-]+)", (RAY_UP / f"{cloud}.yaml").read_text())
    assert [path for path in named if not path.startswith(".venv/") and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("cloud", CLOUDS)
def test_ports_of_the_head_and_of_those_that_join_it_agree(cloud: str) -> None:
    config = ray_up(cloud)
    (head,) = config["head_start_ray_commands"]
    assert "--port=6379" in head and "--dashboard-host=127.0.0.1" in head and "--block" in head
    assert "--address=$RAY_HEAD_IP:6379" in config["worker_start_ray_commands"][-1]


def test_example_of_the_environment_has_what_nodes_require() -> None:
    example = (RAY_UP / "cluster.env.example").read_text()
    assert [name for name in REQUIRED if not re.search(rf"(?m)^{name}=$", example)] == []
    variables = (environment.SECRET_VARIABLE, environment.MASTER_KEY_VARIABLE, environment.ADMIN_KEY_VARIABLE)
    for name in (*variables, environment.DATABASE_URL_VARIABLE):
        assert name in REQUIRED
    assert "RAY_gcs_rpc_server_reconnect_timeout_s=" in example  # longer than keep-head.sh takes
    assert "RAY_gcs_storage=rocksdb" in example and "RAY_gcs_storage_path=" in example


def stand_ins(folder: Path, **programs: str) -> dict[str, str]:
    """An environment in which these programs are scripts of the shell."""
    folder.mkdir(exist_ok=True)
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def installing(folder: Path) -> dict[str, str]:
    """An environment in which nothing is installed: the programs that would do it print what they were asked."""
    names = ("make", "python3.11", "g++", "sudo", "install")
    return stand_ins(folder, **dict.fromkeys(names, 'echo "${0##*/} $@"'))


def a_node(home: Path, missing: str | None = None, certificate: str = "x") -> Path:
    """A home folder as `ray up` makes it, without one variable or file. Returns the script that sets the node up."""
    files = home / "baton/conf/ray-up"
    (files / "tls").mkdir(parents=True)
    for name in CERTIFICATE:
        (files / "tls" / name).write_text("" if name == missing else certificate)
    for name in ("node.sh", "serve.yaml"):
        (files / name).write_text((RAY_UP / name).read_text())
    (home / "cluster.env").write_text("".join(f"{name}={'' if name == missing else 'x'}\n" for name in REQUIRED))
    (home / ".bashrc").touch()
    return files / "node.sh"


@pytest.mark.parametrize("missing", [None, *REQUIRED, *CERTIFICATE])
def test_node_is_not_set_up_without_its_environment(missing: str | None, tmp_path: Path) -> None:
    """With everything set, the script goes on to the installation, for which a stand-in of make is on the path."""
    script = a_node(tmp_path, missing)
    (script.parent / "serve.yaml").write_text("network:\n  tls: {}\n")
    surroundings = {"HOME": str(tmp_path), **installing(tmp_path / "bin")}
    for _ in range(2):
        ran = subprocess.run(["bash", script], env=surroundings, capture_output=True, text=True)
        assert (ran.returncode == 0) is (missing is None)
        assert missing is None or missing in ran.stderr
    assert (tmp_path / ".bashrc").read_text().count("cluster.env") == (1 if missing is None else 0)


def test_node_without_tls_needs_no_certificate(tmp_path: Path) -> None:
    script = a_node(tmp_path)
    for path in (script.parent / "tls").iterdir():
        path.unlink()
    (script.parent / "tls").rmdir()
    (script.parent / "serve.yaml").write_text("# tls: a comment\nnetwork: {}\n")
    surroundings = {"HOME": str(tmp_path), **installing(tmp_path / "bin")}
    ran = subprocess.run(["bash", script], env=surroundings, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "make setup" in ran.stdout and "/etc/baton/tls" not in ran.stdout


@pytest.mark.parametrize("fails", [None, "10.0.0.6"])
def test_new_certificate_reaches_all_workers(fails: str | None, tmp_path: Path) -> None:
    """A stand-in of Ray runs commands in the head's home folder, and one of SSH in that of a worker."""
    a_node(tmp_path / "head", certificate="new")
    workers = ("10.0.0.5", "10.0.0.6", "10.0.0.7")
    for address in workers:
        a_node(tmp_path / address, certificate="old")
        (tmp_path / address / "baton/conf/ray-up/serve.yaml").write_text("network:\n  tls: {}\n")
    addresses = "\\n".join(workers)
    surroundings = installing(tmp_path / "bin") | stand_ins(
        tmp_path / "bin",
        ray=f'[ "$1" = exec ] || exec printf "{addresses}\\n"; HOME={tmp_path}/head exec bash -c "$3"',
        ssh=f'[ "${{@: -2:1}}" = "{fails}" ] && exit 255; HOME={tmp_path}/"${{@: -2:1}}" exec bash -c "${{@: -1}}"',
    )
    ran = subprocess.run(
        ["bash", RAY_UP / "copy-certificates.sh", "a.yaml"], env=surroundings, capture_output=True, text=True
    )
    assert ran.returncode == (0 if fails is None else 1)
    for address in workers:
        found = (tmp_path / address / "baton/conf/ray-up/tls/tls.crt").read_text()
        assert found == ("old" if address == fails else "new")
        assert (f"{address} has the certificate" in ran.stdout) is (address != fails)
    reached = len(workers) - (fails is not None)
    assert ran.stdout.count("install -m 600 conf/ray-up/tls/tls.crt") == reached
    assert "make" not in ran.stdout


@pytest.mark.parametrize("script", sorted(RAY_UP.glob("*.sh")), ids=lambda script: script.name)
def test_scripts_are_programs_of_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
