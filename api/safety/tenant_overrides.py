"""What decisions on appeals have changed for one tenant: `overrides/TENANT.toml` of the folder of policies."""

import fcntl
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from api.safety.policy import NEVER_OFF, Policy, Threshold
from api.safety.scans.normalise import canonical
from api.safety.verdict import Category

_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")


class TenantOverrides(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    allowed: list[str] = []
    """Terms that no list finds, beside those of the policy."""
    thresholds: dict[Category, Threshold] = {}
    """In place of those of the policy, tighter or looser."""

    def applied(self, policy: Policy) -> Policy:
        allowed = [*policy.allowed, *self.allowed]
        return msgspec.structs.replace(policy, allowed=allowed, thresholds=policy.thresholds | self.thresholds)

    def to_toml(self) -> str:
        """Strings of printable characters are the same in TOML and in JSON."""
        terms = "".join(f"  {json.dumps(term, ensure_ascii=False)},\n" for term in self.allowed)
        thresholds = "".join(f'"{category}" = "{threshold}"\n' for category, threshold in self.thresholds.items())
        head = "# Written by `baton audit decide`: what decisions on appeals have changed for this tenant."
        return f"{head}\nallowed = [\n{terms}]\n\n[thresholds]\n{thresholds}"


MOST_BYTES = 1 << 20
"""Bytes of a tenant's file. More holds up the reading of the folder; fewer refuses a tenant with many terms."""


class OverridesFile:
    """The overrides of one tenant on disk."""

    def __init__(self, folder: Path, tenant: str) -> None:
        """`folder`: of policies. Raises ValueError: a tenant has no such name."""
        if _TENANT.fullmatch(tenant) is None:
            raise ValueError(f"{tenant!r} is no name of a tenant")
        self.path = folder / "overrides" / f"{tenant}.toml"

    @contextmanager
    def change(self, allowed: Sequence[str], thresholds: Mapping[Category, Threshold]) -> Iterator[None]:
        """Add to the file, which is replaced as a whole if the body succeeds. Nobody else changes it meanwhile. Raises
        OSError, and ValueError: a term is empty or cannot be written, a threshold has no effect, or the file is not
        valid or too long.
        """
        _check(allowed, thresholds)
        self.path.parent.mkdir(exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = read_overrides(self.path) if self.path.exists() else TenantOverrides()
            terms = [*before.allowed, *(term for term in allowed if term not in before.allowed)]
            text = TenantOverrides(allowed=terms, thresholds={**before.thresholds, **thresholds}).to_toml()
            new = self.path.with_suffix(".new")
            new.write_text(text, encoding="utf-8")
            read_overrides(new)
            yield
            new.replace(self.path)

    def remove(self) -> bool:
        """Returns whether there was a file."""
        was_there = self.path.exists()
        self.path.unlink(missing_ok=True)
        return was_there


def read_overrides(file: Path) -> TenantOverrides:
    """Raises OSError, and ValueError: it is not valid, or too long."""
    with file.open("rb") as opened:
        text = opened.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"{file} has more than {MOST_BYTES:,} bytes")
    try:
        return msgspec.toml.decode(text, type=TenantOverrides)
    except msgspec.DecodeError as error:
        raise ValueError(f"{file}: {error}") from error


def _check(allowed: Sequence[str], thresholds: Mapping[Category, Threshold]) -> None:
    """Raises ValueError."""
    for term in allowed:
        if not (canonical(term).strip() and term.isprintable()):
            raise ValueError(f"a term has printable characters, and a letter or a digit: {term!r}")
    for category, threshold in thresholds.items():
        if category is Category.PERSONAL_DATA:
            raise ValueError("personal data has no threshold: the policy says what is done about each kind")
        if (least := NEVER_OFF.get(category)) is not None and threshold.tightened(least) is not threshold:
            raise ValueError(f"the threshold of {category} is never looser than {least}")
