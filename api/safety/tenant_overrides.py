"""What decisions on appeals have changed for one tenant: `overrides/TENANT.toml` of the folder of policies."""

import json
import re
from collections.abc import Mapping, Sequence
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


class OverridesFile:
    """The overrides of one tenant on disk."""

    def __init__(self, folder: Path, tenant: str) -> None:
        """`folder`: of policies. Raises ValueError: a tenant has no such name."""
        if _TENANT.fullmatch(tenant) is None:
            raise ValueError(f"{tenant!r} is no name of a tenant")
        self.path = folder / "overrides" / f"{tenant}.toml"

    def changed(self, allowed: Sequence[str], thresholds: Mapping[Category, Threshold]) -> TenantOverrides:
        """What is in the file, and more. Raises ValueError: a term is empty or cannot be written, a threshold has no
        effect, or the file is not valid.
        """
        for term in allowed:
            if not (canonical(term).strip() and term.isprintable()):
                raise ValueError(f"a term has printable characters, and a letter or a digit: {term!r}")
        for category, threshold in thresholds.items():
            if category is Category.PERSONAL_DATA:
                raise ValueError("personal data has no threshold: the policy says what is done about each kind")
            if (least := NEVER_OFF.get(category)) is not None and threshold.tightened(least) is not threshold:
                raise ValueError(f"the threshold of {category} is never looser than {least}")
        before = TenantOverrides()
        if self.path.exists():
            before = msgspec.toml.decode(self.path.read_bytes(), type=TenantOverrides)
        terms = [*before.allowed, *(term for term in allowed if term not in before.allowed)]
        return TenantOverrides(allowed=terms, thresholds={**before.thresholds, **thresholds})

    def write(self, overrides: TenantOverrides) -> None:
        """Replace the file as a whole."""
        self.path.parent.mkdir(exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(overrides.to_toml(), encoding="utf-8")
        new.replace(self.path)
