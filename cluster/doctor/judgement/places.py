"""The model, files, keys, disks, ports and names that a config names. Pure."""

from collections.abc import Iterator, Mapping

import msgspec

from cluster.config.environment import ADMIN_KEY_VARIABLE, MASTER_KEY_VARIABLE, SECRET_VARIABLE
from cluster.doctor.finding import CheckFinding, failed, gib, listed, ok, unknown, warning

OTHERS = 0o077
"""Permissions of a file that others than its owner have."""
LEAST_FREE_BYTES = 2 << 30
"""Free bytes of the disk of state.data_dir below which a warning is given. PostgreSQL stops when the disk is full."""
SOON_DAYS = 14
"""Days before the end of a certificate from which it is told. More tells of what renews itself in time; fewer leaves
less time.
"""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    folder: str | None
    """Where it is on this machine. None if it is not there."""
    missing: list[str] = []
    """Files that it lacks, or that are empty."""
    weights_bytes: int = 0
    error: str = ""


class PortFacts(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """Its key in the config."""
    host: str
    port: int
    error: str = ""
    """Why it cannot be listened on. Empty if it can."""
    taken_by: str = ""
    """The process that listens there, if it can be seen."""


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A file with a key."""

    path: str
    mode: int | None
    """Its permissions. None if it does not exist."""
    error: str = ""


class TlsFacts(msgspec.Struct, frozen=True, kw_only=True):
    error: str = ""
    """Why the files cannot be used."""
    left_s: float = 0.0
    """Seconds until the certificate ends."""
    key_mode: int | None = None


class DiskFacts(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """The key of the config that names the folder."""
    path: str
    free_bytes: int
    needed_bytes: int = LEAST_FREE_BYTES
    is_writable: bool = True
    error: str = ""


def judge_model(facts: ModelFacts) -> CheckFinding:
    if facts.error:
        return failed(
            "model", f"{facts.folder or facts.name}: {facts.error}", "correct `model`, or the folder's rights"
        )
    if facts.folder is None:
        is_path = facts.name.startswith(("/", ".")) or facts.name.count("/") != 1
        if is_path:
            return failed("model", f"there is no folder {facts.name}", "correct `model`, or copy the model there")
        return warning(
            "model",
            f"{facts.name} is not on this machine: it is downloaded at the first start",
            f"`huggingface-cli download {facts.name}` on every node beforehand",
        )
    if facts.missing:
        return failed("model", f"{facts.folder} lacks {listed(facts.missing)}", "copy or download it again")
    return ok("model", f"{facts.folder}, weights {gib(facts.weights_bytes)}")


def judge_ports(ports: list[PortFacts]) -> Iterator[CheckFinding]:
    for port in ports:
        check, where = f"port {port.port}", f"{port.key} on {port.host}"
        if not port.error:
            yield ok(check, f"free for {where}")
        else:
            by = f", by {port.taken_by}" if port.taken_by else ""
            yield failed(check, f"{where} cannot be used: {port.error}{by}", f"end that program, or change {port.key}")


def judge_key_files(files: list[FileFacts]) -> Iterator[CheckFinding]:
    for file in files:
        if file.error:
            yield failed("keys", f"{file.path}: {file.error}", "run the command as the user of the service")
        elif file.mode is not None and file.mode & OTHERS:
            todo = f"chmod 600 {file.path}"
            yield warning("keys", f"others than the owner may use {file.path} (mode {file.mode:o})", todo)
        elif file.mode is not None:
            yield ok("keys", f"{file.path} has mode {file.mode:o}")


def judge_secrets(
    environment: Mapping[str, bool], refusals: Mapping[str, str], *, is_one_machine: bool
) -> CheckFinding:
    """`environment`: whether each variable with a secret is set. `refusals`: why what it has is not valid. A service on
    one machine makes its own secrets.
    """
    check, wanted = "secrets", (SECRET_VARIABLE, ADMIN_KEY_VARIABLE, MASTER_KEY_VARIABLE)
    if refusals:
        return failed(check, "; ".join(refusals.values()), "set a valid one in the environment of every node")
    missing = [name for name in wanted if not environment.get(name)]
    if missing and not is_one_machine:
        return warning(
            check,
            f"not set: {listed(missing)}; without them each node, or Ray, keeps one of its own",
            "set them in the environment of every node before Ray starts there (docs/clusters.md)",
        )
    found = "the service makes its own" if missing else "all are set"
    return ok(check, f"{found}{', as on one machine' if is_one_machine and missing else ''}")


def judge_tls(facts: TlsFacts | None) -> Iterator[CheckFinding]:
    if facts is None:
        return
    if facts.error:
        yield failed("TLS", facts.error, "correct network.tls, or the files (docs/network.md)")
        return
    if facts.key_mode is not None and facts.key_mode & OTHERS:
        yield warning("TLS", f"others than the owner may read the key (mode {facts.key_mode:o})", "chmod 600 the key")
    days = facts.left_s / 86_400
    if facts.left_s <= 0:
        yield failed("TLS", f"the certificate has ended {-days:.0f} days ago", "replace it (docs/clusters.md)")
    elif days < SOON_DAYS:
        yield warning("TLS", f"the certificate ends in {days:.0f} days", "replace it (docs/clusters.md)")
    else:
        yield ok("TLS", f"the files can be used; the certificate ends in {days:.0f} days")


def judge_disks(disks: list[DiskFacts]) -> Iterator[CheckFinding]:
    for disk in disks:
        check = f"disk of {disk.key}"
        if disk.error:
            yield failed(check, f"{disk.path}: {disk.error}", f"correct {disk.key}, or the folder's rights")
        elif not disk.is_writable:
            yield failed(check, f"{disk.path} is not writable", "give the user of the service the right to write there")
        elif disk.free_bytes < disk.needed_bytes:
            found = f"{gib(disk.free_bytes)} free at {disk.path}, {gib(disk.needed_bytes)} wanted"
            yield warning(check, found, "make room, or name another folder")
        else:
            yield ok(check, f"{gib(disk.free_bytes)} free at {disk.path}")


def judge_names(resolved: Mapping[str, str | None], network_error: str) -> Iterator[CheckFinding]:
    """`resolved`: the address of each host name, or None. `network_error`: of network.host."""
    if network_error:
        yield failed("network", network_error, "correct network.host (docs/network.md)")
    lost = [name for name, address in resolved.items() if address is None]
    if lost:
        yield failed("host names", f"they do not resolve: {listed(lost)}", "correct the names, or DNS, or /etc/hosts")
    elif resolved:
        yield ok("host names", listed([f"{name} is {address}" for name, address in resolved.items()]))
    else:
        yield unknown("host names", "the config names none")
