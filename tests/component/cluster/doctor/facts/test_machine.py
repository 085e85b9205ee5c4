import sys
from pathlib import Path

import pytest

from cluster.doctor.facts.machine import gpu_tool, gpus_in, machine_facts
from cluster.doctor.facts.programs import ProgramFailed, ProgramTooSlow, output_of
from cluster.doctor.facts.services import postgres_facts, redis_facts, without_password
from cluster.doctor.facts.software import compiled_facts, flavour_of_environment, package_facts


def test_this_machine() -> None:
    facts = machine_facts()
    assert 0 < facts.available_bytes <= facts.total_bytes
    assert facts.num_cpus > 0
    assert facts.overcommit in (0, 1, 2)


def test_this_environment_has_its_lock() -> None:
    facts = package_facts(flavour_of_environment())
    assert facts.locked
    assert facts.installed["msgspec"] == facts.locked["msgspec"]
    assert compiled_facts()[1] in (True, False)


def test_lock_that_is_not_there_is_no_crash() -> None:
    assert package_facts("other").locked is None


def test_gpus_of_a_listing() -> None:
    (gpu,) = gpus_in("NVIDIA H100 80GB HBM3, 580.65.06, 81559, 12\nbroken, line\n[N/A], [N/A], [N/A], [N/A]\n")
    assert (gpu.name, gpu.driver, gpu.used_bytes) == ("NVIDIA H100 80GB HBM3", "580.65.06", 12 << 20)


def test_driver_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'driver mismatch' >&2; exit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_tool().error == "driver mismatch"


def test_program_that_hangs_is_killed() -> None:
    with pytest.raises(ProgramTooSlow):
        output_of([sys.executable, "-c", "import time; time.sleep(60)"], 0.1)
    with pytest.raises(ProgramFailed, match="does not run"):
        output_of(["/nonexistent"], 0.1)


@pytest.mark.parametrize("url", ["postgresql://u:hunter2@127.0.0.1:1/db", "postgresql://u:hunter2@[/db"])
def test_postgres_that_is_away_is_an_error_without_the_password(url: str) -> None:
    error = postgres_facts(url, ".").error
    assert error
    assert "hunter2" not in error


@pytest.mark.parametrize("url", ["redis://:hunter2@127.0.0.1:1/0", "nonsense://:hunter2@h"])
def test_redis_that_is_away_is_an_error_without_the_password(url: str) -> None:
    error = redis_facts("Redis", url, ".", counts_limits=False).error
    assert error
    assert "hunter2" not in error


def test_password_is_taken_out_of_any_text() -> None:
    assert without_password("no route with hunter2", "redis://:hunter2@h") == "no route with ***"


def test_embedded_servers_run_here(tmp_path: Path) -> None:
    postgres = postgres_facts(None, str(tmp_path))
    assert (postgres.error, postgres.version >= 14) == ("", True)
    redis = redis_facts("Redis", None, str(tmp_path), counts_limits=True)
    assert (redis.error, redis.version >= 6) == ("", True)
