"""A folder of stored state that another container or node uses is refused: the process does not start, and its error
names the reason.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.services.failure import ServiceFailed
from cluster.services.folder_use import FolderUse, InUseElsewhere, claim_for_node, own_home
from cluster.services.postgres import LocalPostgres

USE = "import sys; from pathlib import Path; from cluster.services.folder_use import FolderUse\n"
USE += "FolderUse(Path(sys.argv[1]), sys.argv[2]).begin(); print('begun', flush=True); sys.stdin.read()"


def a_user(folder: Path, home: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", USE, str(folder), home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


def test_processes_of_one_home_use_a_folder_together(tmp_path: Path) -> None:
    other = a_user(tmp_path / "postgres", own_home())
    FolderUse(tmp_path / "postgres").begin()
    other.communicate()


def test_server_does_not_start_where_another_container_uses_the_folder(tmp_path: Path) -> None:
    """Its own look at process ids would take the server of the other container for dead."""
    folder = tmp_path / "postgres"
    other = a_user(folder, "another")
    folder.mkdir()
    pid_file = folder / "postmaster.pid"
    pid_file.write_text("4194305\n")
    postgres = LocalPostgres(folder)
    try:
        with pytest.raises(ServiceFailed, match="another container or machine"):
            postgres.start()
        assert pid_file.exists()
        assert not list(folder.glob("PG_VERSION"))
    finally:
        other.communicate()
        pid_file.unlink()
        postgres.stop()


def test_user_that_was_killed_does_not_count(tmp_path: Path) -> None:
    other = a_user(tmp_path / "postgres", "another")
    other.kill()
    other.communicate()
    use = FolderUse(tmp_path / "postgres")
    use.begin()
    assert [file.name for file in (tmp_path / "postgres.users").iterdir()] == [own_home()]


def test_folder_is_free_after_its_use(tmp_path: Path) -> None:
    use = FolderUse(tmp_path / "postgres")
    use.begin()
    other = FolderUse(tmp_path / "postgres", "another")
    with pytest.raises(InUseElsewhere):
        other.begin()
    use.end()
    other.begin()
    with pytest.raises(InUseElsewhere):
        use.begin()


# --- nodes


class Kept:
    """A key of Ray's key-value store, and the nodes that are alive."""

    def __init__(self, *alive: str) -> None:
        self.alive = set(alive)
        self.node: str | None = None

    def keep_first(self, node: str) -> str:
        self.node = self.node or node
        return self.node

    def replace(self, node: str) -> None:
        self.node = node

    def claim(self, node: str) -> str | None:
        return claim_for_node(node, self.keep_first, self.replace, self.alive.__contains__)


def test_replicas_of_one_node_share_what_it_keeps() -> None:
    kept = Kept("one")
    assert kept.claim("one") is None
    assert kept.claim("one") is None


def test_second_node_is_told_to_set_the_database() -> None:
    kept = Kept("one", "two")
    kept.claim("one")
    with pytest.raises(InUseElsewhere, match=r"state\.database_url"):
        kept.claim("two")
    assert kept.node == "one"


def test_node_takes_over_from_one_that_is_gone() -> None:
    kept = Kept("one", "two")
    kept.claim("one")
    kept.alive.remove("one")
    assert kept.claim("two") == "one"
    assert kept.node == "two"
