"""PostgreSQL and Redis. Pure."""

import msgspec

from cluster.doctor.finding import CheckFinding, failed, ok, warning

LEAST_POSTGRES, LEAST_REDIS = 14, 6
"""Oldest major versions that are known to work. The embedded servers are PostgreSQL 18 and Redis 6.2."""
NO_EVICTION = "noeviction"


class PostgresFacts(msgspec.Struct, frozen=True, kw_only=True):
    is_embedded: bool
    version: int = 0
    """Major version."""
    may_create: bool = True
    """Whether the role may make tables."""
    bypasses_rows: bool = False
    """Whether row-level security does not apply to the role: a superuser, or one with BYPASSRLS."""
    error: str = ""
    """Without the URL, which has a password."""


class RedisFacts(msgspec.Struct, frozen=True, kw_only=True):
    use: str
    """What it is used for: the name of the check."""
    is_embedded: bool
    version: int = 0
    policy: str = ""
    """Its maxmemory-policy. Empty if it does not tell."""
    may_run_scripts: bool = True
    counts_limits: bool = False
    """Whether limits and budgets are counted in it."""
    error: str = ""


def judge_postgres(facts: PostgresFacts) -> CheckFinding:
    check = "PostgreSQL"
    if facts.error:
        todo = (
            "state.data_dir, or its rights" if facts.is_embedded else "state.database_url, the server, or the network"
        )
        return failed(check, facts.error, f"correct {todo} (docs/state.md)")
    found = f"version {facts.version}{', embedded' if facts.is_embedded else ''}"
    if facts.version < LEAST_POSTGRES:
        return failed(check, f"{found}; Baton needs {LEAST_POSTGRES}", "upgrade the server")
    if not facts.may_create:
        return failed(check, f"{found}; the role may not make tables", "GRANT CREATE ON SCHEMA public TO the role")
    if facts.bypasses_rows:
        return warning(
            check,
            f"{found}; the role is a superuser, to which row-level security does not apply",
            "use a role without SUPERUSER and BYPASSRLS: the database then keeps tenants apart, too",
        )
    return ok(check, found)


def judge_redis(facts: RedisFacts) -> CheckFinding:
    if facts.error:
        todo = "state.data_dir, or its rights" if facts.is_embedded else "the URL, the server, or the network"
        return failed(facts.use, facts.error, f"correct {todo} (docs/state.md)")
    found = f"version {facts.version}{', embedded' if facts.is_embedded else ''}"
    if facts.version < LEAST_REDIS:
        return failed(facts.use, f"{found}; Baton needs {LEAST_REDIS}", "upgrade the server")
    if not facts.may_run_scripts:
        return failed(facts.use, f"{found}; the user may not run scripts", "give the user +@scripting")
    if facts.counts_limits and facts.policy and facts.policy != NO_EVICTION:
        return warning(
            facts.use,
            f"{found} with maxmemory-policy {facts.policy}: it may forget what limits have counted",
            "a server of its own for state.limits_redis_url, with maxmemory-policy noeviction",
        )
    return ok(facts.use, found)
