"""Python, the locked packages, compiled modules, vLLM and NIXL. Pure."""

from collections.abc import Iterator, Mapping

import msgspec

from cluster.doctor.finding import CheckFinding, failed, listed, ok, unknown, warning
from cluster.messages.transport import Transport

PYTHON = (3, 11)
"""The version of Python that pyproject.toml asks for."""
SETUP = "run `make setup`, and start Baton with .venv/bin/baton"
SLOW = "try again while the machine has less to do. If it stays, a driver or a file system may hang"


class PackageFacts(msgspec.Struct, frozen=True, kw_only=True):
    locked: Mapping[str, str] | None
    """Version by name, in lower case with dashes. None if the lock cannot be read."""
    installed: Mapping[str, str]
    """The same of this environment."""
    lock: str
    """Name of the lock's file."""


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What another process has found out by loading vLLM."""

    vllm: str = ""
    torch: str = ""
    device: str = ""
    """vLLM's name for the device: cpu, cuda, ..."""
    cuda: str | None = None
    """The version of CUDA that torch was built with."""
    refusal: str = ""
    """Why vLLM does not take the engine arguments of the config."""
    error: str = ""
    """Why vLLM cannot be loaded."""
    is_too_slow: bool = False
    """Whether it has only taken too long."""


class NixlFacts(msgspec.Struct, frozen=True, kw_only=True):
    version: str = ""
    plugins: list[str] = []
    error: str = ""
    is_too_slow: bool = False
    ucx_transports: list[str] | None = None
    """What `ucx_info -d` lists. None where it is not installed."""


def judge_python(version: tuple[int, int], executable: str) -> CheckFinding:
    found = f"{version[0]}.{version[1]} ({executable})"
    if version == PYTHON:
        return ok("Python", found)
    return failed("Python", f"{found}; Baton needs {PYTHON[0]}.{PYTHON[1]}", SETUP)


def judge_packages(facts: PackageFacts) -> CheckFinding:
    check = "packages"
    if facts.locked is None:
        return unknown(check, f"{facts.lock} cannot be read", "run the command in the repository")
    missing = [name for name in facts.locked if name not in facts.installed]
    others = [
        f"{name} {facts.installed[name]} instead of {version}"
        for name, version in facts.locked.items()
        if facts.installed.get(name, version) != version
    ]
    if missing:
        return failed(check, f"{len(missing)} packages of {facts.lock} are missing: {listed(missing)}", SETUP)
    if others:
        return warning(check, f"{len(others)} differ from {facts.lock}: {listed(others)}", SETUP)
    return ok(check, f"all {len(facts.locked)} of {facts.lock}")


def judge_compiled(is_built: bool, is_switched_off: bool) -> CheckFinding:
    check = "compiled modules"
    if is_switched_off:
        return warning(
            check, "BATON_PURE_PYTHON is 1, so the sources run", "unset it: the Scheduler is several times as fast then"
        )
    if not is_built:
        return warning(
            check,
            "there are none of these sources, so the sources run",
            "run `baton compile`: the Scheduler is several times as fast then",
        )
    return ok(check, "they belong to these sources")


def judge_engine(facts: EngineFacts, *, wants_gpus: bool) -> Iterator[CheckFinding]:
    if facts.is_too_slow:
        yield unknown("vLLM", facts.error, SLOW)
        return
    if facts.error:
        yield failed("vLLM", f"it cannot be loaded: {facts.error}", SETUP)
        return
    found = f"{facts.vllm} for {facts.device or 'no device'}, torch {facts.torch}"
    if wants_gpus and facts.device == "cpu":
        yield failed("vLLM", f"{found}, and the config wants GPUs", "run `make setup FLAVOUR=gpu`")
    elif not facts.device:
        yield failed("vLLM", f"{found}: it finds no device to run on", "look at the check of the GPU and its driver")
    else:
        yield ok("vLLM", found)
    if facts.refusal:
        yield failed("engine arguments", facts.refusal, "correct the config (docs/models.md)")


def judge_nixl(facts: NixlFacts) -> Iterator[CheckFinding]:
    if facts.is_too_slow:
        yield unknown("NIXL", facts.error, SLOW)
    elif facts.error:
        yield failed("NIXL", f"it cannot be loaded: {facts.error}", SETUP)
    elif "UCX" not in facts.plugins:
        yield failed("NIXL", f"{facts.version} without its plugin UCX: {listed(facts.plugins)}", SETUP)
    else:
        yield ok("NIXL", f"{facts.version} with UCX{_ucx(facts)}")


def judge_transports(wanted: list[Transport], rdma_ports: list[str], num_gpus: int) -> Iterator[CheckFinding]:
    """What the pools insist on, against what the machine has."""
    has = {
        Transport.TCP: True,
        Transport.SHARED_MEMORY: num_gpus == 0,
        Transport.RDMA: bool(rdma_ports),
        Transport.NVLINK: num_gpus > 1,
    }
    inventory = f"RDMA on {listed(rdma_ports)}" if rdma_ports else "no active RDMA port"
    inventory += f", {num_gpus} GPUs"
    lacking = [transport for transport in wanted if not has[transport]]
    if lacking:
        yield failed(
            "transports",
            f"the config asks for {listed([*lacking])}; this machine has {inventory}",
            "run the pools on nodes that have it, or leave `transport` out: then the fastest one is used "
            "(docs/transport.md)",
        )
    else:
        yield ok("transports", inventory)


def _ucx(facts: NixlFacts) -> str:
    return "" if facts.ucx_transports is None else f": {listed(facts.ucx_transports, 12)}"
