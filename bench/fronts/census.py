"""Whose process is whose, and what CPU time it has used.

Every process that a system starts inherits variables, which name this run, the system and the part of it that started
the process; so daemons are found as well. vLLM and Ray show in a process's title what it is. (`SPT_NOENV` keeps titles
from being written over the environment.)
"""

import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RUN_VARIABLE = "BATON_BENCH_RUN"
SYSTEM_VARIABLE = "BATON_BENCH_SYSTEM"
PART_VARIABLE = "BATON_BENCH_PART"
ENGINE = "engine core"
"""The role whose CPU time is not the front's."""

_TITLES = (
    (re.compile(r"^VLLM::EngineCore"), ENGINE),
    (re.compile(r"^ray::.*\bServeReplica:[^:]*:(\w+)"), None),
    (re.compile(r"^ray::(\w+)"), None),
    (re.compile(r"^\S*/(gcs_server|raylet|haproxy)\b"), None),
)
"""What a title says about the role: a name, or where in the title it is."""

_CPU_CLOCK = 2
"""Linux: `~pid << 3 | 2` is the clock of a process's CPU time, user and system, of all its threads."""


@dataclass(frozen=True)
class Process:
    pid: int
    started_at: int
    """When the process started, in clock ticks since boot. It tells two processes of one pid apart."""
    system: str
    role: str


Reading = dict[Process, float]
"""CPU seconds that each process has used since it started."""


def marks(system: str, part: str) -> dict[str, str]:
    """The environment that marks a process and all its descendants."""
    return {RUN_VARIABLE: str(os.getpid()), SYSTEM_VARIABLE: system, PART_VARIABLE: part, "SPT_NOENV": "1"}


def role(title: str, part: str) -> str:
    """What a process does, by its title, or else by the part of the system that started it."""
    for pattern, name in _TITLES:
        if found := pattern.match(title):
            return name or found[1]
    return part


def read() -> Reading:
    """Now, of all processes of this run."""
    reading = {}
    for process in processes():
        with suppress(OSError):
            reading[process] = cpu_s(process.pid)
    return reading


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used since it started. Raises OSError when it has ended."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK)


def used_s(before: Reading, after: Reading) -> dict[str, dict[str, float]]:
    """CPU seconds by system and role from one reading to the next, as `used_by_process`."""
    used: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for process, seconds in used_by_process(before, after).items():
        used[process.system][process.role] += seconds
    return {system: dict(roles) for system, roles in used.items()}


def used_by_process(before: Reading, after: Reading) -> Reading:
    """CPU seconds from one reading to the next. A process that has ended in between counts as nothing, one that has
    started counts from its start.
    """
    earlier = {(process.pid, process.started_at): seconds for process, seconds in before.items()}
    return {
        process: seconds - earlier.get((process.pid, process.started_at), 0.0) for process, seconds in after.items()
    }


def machine_busy_s() -> float:
    """CPU seconds that all processes together have used since boot, to a hundredth."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def kill(system: str) -> None:
    """End every process of a system at once."""
    for process in processes():
        if process.system == system:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def processes() -> Iterator[Process]:
    """The living processes of this run."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            entries = (folder / "environ").read_text(errors="replace").split("\0")
            marks = dict(entry.split("=", 1) for entry in entries if "=" in entry)
            if marks.get(RUN_VARIABLE) != str(os.getpid()):
                continue
            title = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
            state, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                system, part = marks[SYSTEM_VARIABLE], marks[PART_VARIABLE]
                yield Process(int(folder.name), int(fields[18]), system, role(title, part))
