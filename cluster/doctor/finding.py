"""A finding of `baton doctor`: what one check has found, and what to do. Pure."""

from enum import StrEnum

import msgspec


class CheckResult(StrEnum):
    """The worst comes first."""

    FAILED = "failed"
    """The service would not start, or not serve."""
    WARNING = "warning"
    """The service starts, and something will go wrong or be slow."""
    UNKNOWN = "cannot tell"
    """The check could not find it out."""
    OK = "ok"


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    check: str
    result: CheckResult
    found: str
    """What was found. It never has a secret."""
    todo: str = ""
    """What an operator can do. Empty if there is nothing to do."""


def ok(check: str, found: str) -> CheckFinding:
    return CheckFinding(check=check, result=CheckResult.OK, found=found)


def warning(check: str, found: str, todo: str) -> CheckFinding:
    return CheckFinding(check=check, result=CheckResult.WARNING, found=found, todo=todo)


def failed(check: str, found: str, todo: str) -> CheckFinding:
    return CheckFinding(check=check, result=CheckResult.FAILED, found=found, todo=todo)


def unknown(check: str, found: str, todo: str = "") -> CheckFinding:
    return CheckFinding(check=check, result=CheckResult.UNKNOWN, found=found, todo=todo)


def listed(names: list[str], most: int = 5) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def gib(num_bytes: float) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"
