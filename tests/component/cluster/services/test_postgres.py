"""PostgreSQL of our own: real servers, and real processes that use them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from cluster.services.failure import ServiceFailed
from cluster.services.postgres import LocalPostgres

USER = "import sys; from pathlib import Path; from cluster.services.postgres import LocalPostgres\n"
ATTACH = USER + "LocalPostgres(Path(sys.argv[1])).start(); print('attached', flush=True); sys.stdin.read()"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "postgres"
    yield made
    LocalPostgres(made).stop()
    assert not servers(made)


def servers(folder: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if str(folder) in (p.info["cmdline"] or [])]


def another_process(folder: Path) -> subprocess.Popen[str]:
    """That has attached, and leaves when its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", ATTACH, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "attached\n"
    return process


def test_restart_keeps_the_data(folder: Path) -> None:
    first = LocalPostgres(folder)
    with psycopg.connect(first.start()) as connection:
        connection.execute("CREATE TABLE notes (text text)")
        connection.execute("INSERT INTO notes VALUES ('kept')")
    first.stop()
    assert not first.is_running
    with psycopg.connect(LocalPostgres(folder).start()) as connection:
        assert connection.execute("SELECT text FROM notes").fetchall() == [("kept",)]


def test_it_interrupts_nobody_who_asks_it(folder: Path) -> None:
    with psycopg.connect(LocalPostgres(folder).start()) as connection:
        assert os.sched_getscheduler(connection.info.backend_pid) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_last_one_that_leaves_stops_it(folder: Path) -> None:
    mine = LocalPostgres(folder)
    mine.start()
    other = another_process(folder)
    mine.stop()
    assert mine.is_running
    other.communicate(timeout=30)
    assert not servers(folder)


def test_user_that_was_killed_does_not_count(folder: Path) -> None:
    mine = LocalPostgres(folder)
    mine.start()
    other = another_process(folder)
    other.kill()
    other.communicate(timeout=30)
    mine.stop()
    assert not servers(folder)


def test_server_whose_users_were_all_killed_is_stopped_by_whoever_cleans_up(folder: Path) -> None:
    other = another_process(folder)
    other.kill()
    other.communicate(timeout=30)
    assert servers(folder)
    LocalPostgres(folder).stop()
    assert not servers(folder)


def test_killed_server_is_started_again(folder: Path) -> None:
    postgres = LocalPostgres(folder)
    postgres.start()
    for process in servers(folder):
        process.kill()
        process.wait(30)
    assert not postgres.is_running
    with psycopg.connect(postgres.start()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_process_that_has_got_the_id_of_a_dead_server_is_not_taken_for_it(folder: Path) -> None:
    postgres = LocalPostgres(folder)
    postgres.start()
    lines = (folder / "postmaster.pid").read_text().splitlines()
    for process in servers(folder):
        process.kill()
        process.wait(30)
    stranger = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    (folder / "postmaster.pid").write_text("\n".join([str(stranger.pid), *lines[1:]]))
    assert not postgres.is_running
    with psycopg.connect(postgres.start()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert stranger.poll() is None
    stranger.communicate()


def test_baton_is_no_superuser(folder: Path) -> None:
    with psycopg.connect(LocalPostgres(folder).start()) as connection:
        assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (False,)


def test_damaged_folder_is_named(folder: Path) -> None:
    folder.mkdir()
    (folder / "PG_VERSION").write_text("18\n")
    with pytest.raises(
        ServiceFailed, match=f"(?s)does not start in {folder}: pg_ctl ended.*move it away.*postgresql.conf"
    ):
        LocalPostgres(folder).start()


def test_folder_of_another_version_is_named(folder: Path) -> None:
    folder.mkdir()
    (folder / "PG_VERSION").write_text("12\n")
    with pytest.raises(ServiceFailed, match="found version 12"):
        LocalPostgres(folder).start()
    (folder / "PG_VERSION").unlink()


def test_place_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ServiceFailed, match="move it away"):
        LocalPostgres(tmp_path / "file" / "postgres").start()
