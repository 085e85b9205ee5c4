"""The folder of policies and word lists (conf/safety/), read again when it changes.

`policies/NAME.toml` is a policy, `lists/NAME.toml` is a word list, `topics/NAME.toml` is a topic with its disclaimer,
`tenants.toml` says which tenant has which policy, and `overrides/TENANT.toml` what is different for one tenant. A
change that is not valid is logged, and what was valid before stays in force.
"""

import hashlib
import logging
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from api.safety.policy import Policy
from api.safety.scans.rules import Rules, TopicList, WordList
from api.safety.tenant_overrides import TenantOverrides, read_overrides

logger = logging.getLogger("baton.safety")


class TenantPolicies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tenants.toml`."""

    default: str
    """The policy of tenants that are not named."""
    tenants: dict[str, str] = {}
    """Policies by tenant, as `baton tenant` prints it."""


class PolicyInForce(NamedTuple):
    policy: Policy
    version: str
    shadow: Policy | None

    @property
    def cache_version(self) -> str:
        """What texts that were cleared were cleared by."""
        return self.version if self.shadow is None else f"{self.version}/{self.shadow.version}"


class SafetyData(NamedTuple):
    """A valid state of the folder."""

    rules: Rules
    rules_version: str
    """A hash of the lists and topics."""
    policies: dict[str, PolicyInForce]
    names: TenantPolicies
    overridden: dict[str, PolicyInForce]
    """Of tenants with overrides."""

    def of_tenant(self, tenant: str) -> PolicyInForce:
        if (own := self.overridden.get(tenant)) is not None:
            return own
        return self.policies[self.names.tenants.get(tenant, self.names.default)]


class PolicyFolder:
    def __init__(self, folder: Path) -> None:
        """Raises ValueError: a file is missing or not valid."""
        self._folder = folder
        self._seen = self._stamps()
        self.data = _loaded(folder)

    def refresh(self) -> bool:
        """Read the folder if it has changed. Returns whether what is in force has changed."""
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            self.data = _loaded(self._folder)
        except (
            Exception
        ) as error:  # whatever is in the files, what was valid stays in force, and the next change counts
            known = isinstance(error, ValueError)
            logger.error("the change of %s is not in force: %s", self._folder, error, exc_info=None if known else error)
            return False
        logger.warning("the policies and lists of %s have changed", self._folder)
        return True

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """What tells the states of the folder apart."""
        stamps: dict[str, tuple[int, int]] = {}
        for file in self._folder.glob("**/*.toml"):
            try:
                stat = file.stat()
            except OSError:
                continue  # it was removed just now
            stamps[str(file)] = (stat.st_mtime_ns, stat.st_size)
        return stamps


def _loaded(folder: Path) -> SafetyData:
    """Raises ValueError."""
    lists = [_read(file, WordList) for file in sorted((folder / "lists").glob("*.toml"))]
    topics = {file.stem: _read(file, TopicList) for file in sorted((folder / "topics").glob("*.toml"))}
    policies = {file.stem: _read(file, Policy) for file in sorted((folder / "policies").glob("*.toml"))}
    names = _read(folder / "tenants.toml", TenantPolicies)
    wanted = {names.default, *names.tenants.values(), *(policy.shadow for policy in policies.values() if policy.shadow)}
    if missing := wanted - policies.keys():
        raise ValueError(f"{folder}/policies has no {', '.join(sorted(missing))}.toml")
    if unknown := {topic for policy in policies.values() for topic in policy.disclaimers} - topics.keys():
        raise ValueError(f"{folder}/topics has no {', '.join(sorted(unknown))}.toml")

    def in_force(policy: Policy) -> PolicyInForce:
        return PolicyInForce(policy, policy.version, policies[policy.shadow] if policy.shadow else None)

    overridden = {
        tenant: in_force(overrides.applied(policies[names.tenants.get(tenant, names.default)]))
        for tenant, overrides in _overrides(folder).items()
    }
    version = hashlib.sha256(msgspec.json.encode([lists, topics], order="deterministic")).hexdigest()[:16]
    return SafetyData(
        Rules(lists, topics), version, {name: in_force(policy) for name, policy in policies.items()}, names, overridden
    )


def _overrides(folder: Path) -> dict[str, TenantOverrides]:
    """By tenant. A file that is not valid changes nothing, and keeps no other tenant's change from being in force."""
    found: dict[str, TenantOverrides] = {}
    for file in sorted((folder / "overrides").glob("*.toml")):
        try:
            found[file.stem] = read_overrides(file)
        except (OSError, ValueError) as error:
            logger.error("the overrides of tenant %s are not in force: %s", file.stem, error)
    return found


def _read(file: Path, of: Any) -> Any:
    """Raises ValueError."""
    try:
        return msgspec.toml.decode(file.read_bytes(), type=of)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{file}: {error}") from error
