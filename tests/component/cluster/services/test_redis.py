"""Redis of our own: real servers, and real processes that use them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from cluster.services import redis as local_redis
from cluster.services.failure import ServiceFailed
from cluster.services.redis import KEEPING, LocalRedis

USER = "import sys; from pathlib import Path; from cluster.services.redis import LocalRedis\n"
ATTACH = USER + "LocalRedis(Path(sys.argv[1])).start(); print('attached', flush=True); sys.stdin.read()"
LEAVE = USER + "l = LocalRedis(Path(sys.argv[1])); l.start(); print('attached', flush=True); sys.stdin.read(); l.stop()"


User = Callable[[], LocalRedis]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "redis"
    yield made
    LocalRedis(made).stop()
    assert not servers(made)


@pytest.fixture
def user(folder: Path) -> Iterator[User]:
    """Makes one more user of it, who leaves in the end."""
    made: list[LocalRedis] = []

    def another() -> LocalRedis:
        made.append(LocalRedis(folder))
        return made[-1]

    yield another
    for one in made:
        one.stop()


def servers(folder: Path) -> list[psutil.Process]:
    found = psutil.process_iter(["name", "cmdline"])
    return [p for p in found if p.info["name"] == "redis-server" and str(folder) in " ".join(p.info["cmdline"] or [])]


def another_process(folder: Path, program: str = ATTACH) -> subprocess.Popen[str]:
    """That has attached, and ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "attached\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=30)


def is_served(url: str) -> bool:
    with Redis.from_url(url) as client:
        return bool(client.ping())


def test_all_reach_the_same_server(user: User) -> None:
    first, second = user(), user()
    url = first.start()
    with Redis.from_url(url) as one, Redis.from_url(second.start()) as other:
        one.set("note", "seen")
        assert other.get("note") == b"seen"
    assert first.is_running and second.is_running


def test_it_is_not_on_the_network_and_forgets_rather_than_grows(user: User, folder: Path) -> None:
    with Redis.from_url(user().start()) as client:
        assert client.config_get("port") == {"port": "0"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}
        assert client.info("memory")["maxmemory"] == 256 << 20
    assert (folder / "redis.sock").stat().st_mode & 0o077 == 0


def test_server_that_keeps_what_it_has_refuses_what_has_no_room(tmp_path: Path) -> None:
    server = LocalRedis(tmp_path / "redis-limits", KEEPING)
    with Redis.from_url(server.start()) as client:
        client.set("limit", "kept")
        client.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            client.set("another", "refused")
        assert client.get("limit") == b"kept"
    server.stop()


def test_it_interrupts_nobody_who_asks_it(user: User, folder: Path) -> None:
    user().start()
    (server,) = servers(folder)
    assert os.sched_getscheduler(server.pid) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_last_one_that_leaves_stops_it(user: User, folder: Path) -> None:
    mine = user()
    mine.start()
    other = another_process(folder, LEAVE)
    mine.stop()
    assert servers(folder) and not mine.is_running
    other.communicate(timeout=30)
    assert not servers(folder)


def test_user_that_was_killed_does_not_count(user: User, folder: Path) -> None:
    mine = user()
    mine.start()
    kill(another_process(folder))
    mine.stop()
    assert not servers(folder)


def test_server_survives_the_process_that_started_it(user: User, folder: Path) -> None:
    starter = another_process(folder)
    mine = user()
    url = mine.start()
    kill(starter)
    assert is_served(url)


def test_server_whose_users_were_all_killed_is_stopped_by_whoever_cleans_up(folder: Path) -> None:
    kill(another_process(folder))
    assert servers(folder)
    LocalRedis(folder).stop()
    assert not servers(folder)


def test_killed_server_is_started_again(user: User, folder: Path) -> None:
    redis = user()
    redis.start()
    for process in servers(folder):
        process.kill()
        process.wait(30)
    assert not redis.is_running
    assert is_served(redis.start())


def test_server_that_hangs_is_stopped_all_the_same(user: User, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_redis, "STOP_TIMEOUT_S", 0.1)
    redis = user()
    redis.start()
    (process,) = servers(folder)
    process.send_signal(signal.SIGSTOP)
    redis.stop()
    process.wait(30)


def test_many_start_at_once_and_share_one_server(folder: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", ATTACH, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == b"attached\n"
    assert len(servers(folder)) == 1
    for process in processes:
        process.communicate(timeout=30)


def test_folder_with_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("long " * 20) / "redis"
    redis = LocalRedis(folder)
    url = redis.start()
    socket = Path(url.removeprefix("unix://"))
    assert is_served(url) and folder not in socket.parents
    assert socket.parent.stat().st_mode & 0o077 == 0
    redis.stop()
    assert not socket.parent.exists()


def test_folder_of_a_socket_that_others_have_made_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("long" * 25) / "redis"
    place = local_redis._socket_in(folder).parent
    place.symlink_to(tmp_path)
    with pytest.raises(ServiceFailed, match="belongs to another user"):
        LocalRedis(folder).start()
    place.unlink()


def test_damaged_folder_is_named(user: User, folder: Path) -> None:
    (folder / "log").mkdir(parents=True)
    with pytest.raises(ServiceFailed, match=f"(?s)does not start in {folder}: .*log.*move it away"):
        user().start()


def test_why_it_ended_is_in_the_message(user: User, folder: Path) -> None:
    (folder / "redis.sock").mkdir(parents=True)
    with pytest.raises(ServiceFailed, match=r"(?s)redis-server ended at once.*ends with:.*Opening Unix socket"):
        user().start()


@pytest.mark.parametrize("place", ["/proc/redis", "/dev/null/redis"])
def test_folder_that_cannot_be_written_is_named(place: str) -> None:
    with pytest.raises(ServiceFailed, match=f"does not start in {place}: .*writable"):
        LocalRedis(Path(place)).start()
    LocalRedis(Path(place)).stop()


def test_path_with_spaces_and_percent_signs_is_as_good(tmp_path: Path) -> None:
    redis = LocalRedis(tmp_path / "a b%20" / "redis")
    assert is_served(redis.start())
    redis.stop()
