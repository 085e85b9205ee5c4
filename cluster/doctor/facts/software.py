"""What is installed: packages, compiled modules, vLLM, NIXL. What is large is loaded by a process of its own."""

import os
import re
import sys
from importlib.metadata import distributions
from pathlib import Path
from shutil import which

import msgspec

from cluster import compiled
from cluster.doctor.facts.programs import ProgramFailed, ProgramTooSlow, output_of
from cluster.doctor.judgement.software import EngineFacts, NixlFacts, PackageFacts
from cluster.repository import REPO_ROOT

LOAD_TIMEOUT_S = 140.0
"""Time that vLLM or NIXL has to load, in seconds. On a busy machine, vLLM takes half a minute from a cold disk. Longer
waits longer for one that hangs; shorter takes a slow disk for a broken package.
"""
UCX_TIMEOUT_S = 5.0
"""Time that `ucx_info` has, in seconds. Longer waits longer for a driver that hangs; shorter fails on a busy machine.
"""
_MARK = "baton-doctor:"
"""Begins the line with the answer. Libraries print lines of their own."""
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
_NIXL = f"""
import importlib.metadata, json
from nixl._api import nixl_agent, nixl_agent_config
plugins = sorted(nixl_agent("doctor", nixl_agent_config(backends=[])).get_plugin_list())
version = importlib.metadata.version("nixl")
print("{_MARK}" + json.dumps({{"version": version, "plugins": plugins}}))
"""
_TRANSPORT = re.compile(r"^#\s+Transport: (\S+)$", re.MULTILINE)


def package_facts(flavour: str) -> PackageFacts:
    """`flavour`: cpu or gpu."""
    lock = REPO_ROOT / "conf" / "requirements" / f"{flavour}.lock"
    installed = {_plain(found.name): found.version for found in distributions() if found.name}
    try:
        text = lock.read_text()
    except OSError:
        return PackageFacts(locked=None, installed=installed, lock=lock.name)
    locked = {_plain(name): version for name, version in _LOCKED.findall(text)}
    return PackageFacts(locked=locked, installed=installed, lock=lock.name)


def flavour_of_environment() -> str:
    """Which lock this environment is of, by torch's version."""
    torch = next((found.version for found in distributions(name="torch")), "+cpu")
    return "cpu" if torch.endswith("+cpu") else "gpu"


def compiled_facts() -> tuple[bool, bool]:
    """Whether compiled modules of these sources are there, and whether they are switched off."""
    return compiled.folder().is_dir(), os.environ.get(compiled.SWITCH) == "1"


def engine_facts(conf: Path | None) -> EngineFacts:
    """`conf`: whose engine arguments vLLM is asked about. None without one that can be read."""
    command = [sys.executable, "-m", "cluster.doctor.facts.engine_probe", *([str(conf)] if conf else [])]
    environment = {"PYTHONPATH": str(REPO_ROOT), "VLLM_LOGGING_LEVEL": "ERROR"}
    try:
        return msgspec.json.decode(_marked(output_of(command, LOAD_TIMEOUT_S, environment)), type=EngineFacts)
    except (ProgramFailed, msgspec.MsgspecError) as error:
        return EngineFacts(error=str(error), is_too_slow=isinstance(error, ProgramTooSlow))


def nixl_facts() -> NixlFacts:
    try:
        answer = _marked(output_of([sys.executable, "-c", _NIXL], LOAD_TIMEOUT_S))
        return msgspec.structs.replace(msgspec.json.decode(answer, type=NixlFacts), ucx_transports=_transports_of_ucx())
    except (ProgramFailed, msgspec.MsgspecError) as error:
        return NixlFacts(error=str(error), is_too_slow=isinstance(error, ProgramTooSlow))


def _transports_of_ucx() -> list[str] | None:
    if which("ucx_info") is None:
        return None
    try:
        return sorted(set(_TRANSPORT.findall(output_of(["ucx_info", "-d"], UCX_TIMEOUT_S))))
    except ProgramFailed:
        return None


def _marked(output: str) -> str:
    """Raises ProgramFailed if no line has the answer."""
    for line in reversed(output.splitlines()):
        if line.startswith(_MARK):
            return line.removeprefix(_MARK)
    raise ProgramFailed("it has given no answer")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
