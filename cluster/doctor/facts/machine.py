"""What this machine has, as Linux reports it."""

import ctypes
import os
import resource
import struct
from pathlib import Path
from shutil import disk_usage, which

import psutil

from cluster.doctor.facts.programs import ProgramFailed, output_of
from cluster.doctor.judgement.machine import GpuFacts, GpuTool, MachineFacts

NVIDIA_TIMEOUT_S = 10.0
"""Time that nvidia-smi has, in seconds. Without the persistence daemon it takes seconds. Longer waits longer for a
driver that hangs; shorter fails on such machines.
"""
_SHM = Path("/dev/shm")
_QUERY = "name,driver_version,memory.total,memory.used"
_TIMEX_BYTES, _MAX_ERROR_AT, _STATUS_AT, _UNSYNCHRONISED = 512, 24, 40, 0x40
"""Of Linux's `struct timex` with 64 bits: enough room, the places of maxerror and status, and a bit of status."""
_MIB = 1 << 20


def machine_facts() -> MachineFacts:
    memory = psutil.virtual_memory()
    shm = disk_usage(_SHM) if _SHM.is_dir() else None
    is_synchronised, error_s = _clock()
    return MachineFacts(
        total_bytes=min(memory.total, _cgroup_bytes() or memory.total),
        available_bytes=min(memory.available, _cgroup_room() or memory.available),
        num_cpus=_num_cpus(),
        hard_files=_hard(resource.RLIMIT_NOFILE),
        max_threads=_least(_soft(resource.RLIMIT_NPROC), _number(Path("/sys/fs/cgroup/pids.max"))),
        memlock_bytes=_hard(resource.RLIMIT_MEMLOCK),
        shm_total_bytes=shm.total if shm else None,
        shm_free_bytes=shm.free if shm else None,
        overcommit=_number(Path("/proc/sys/vm/overcommit_memory")),
        huge_bytes=_huge_bytes(),
        is_synchronised=is_synchronised,
        clock_error_s=error_s,
    )


def gpu_tool() -> GpuTool:
    if which("nvidia-smi") is None:
        return GpuTool(is_there=False)
    try:
        rows = output_of(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"], NVIDIA_TIMEOUT_S)
        head = output_of(["nvidia-smi"], NVIDIA_TIMEOUT_S)
    except ProgramFailed as error:
        return GpuTool(is_there=True, error=str(error))
    cuda = head.partition("CUDA Version: ")[2].split()[:1]
    return GpuTool(is_there=True, gpus=gpus_in(rows), cuda=cuda[0] if cuda else "")


def gpus_in(rows: str) -> list[GpuFacts]:
    """The GPUs that nvidia-smi lists. A line that has anything else is left out."""
    gpus = []
    for row in rows.splitlines():
        fields = [field.strip() for field in row.split(",")]
        if len(fields) == len(_QUERY.split(",")) and fields[2].isdigit() and fields[3].isdigit():
            total, used = int(fields[2]) * _MIB, int(fields[3]) * _MIB
            gpus.append(GpuFacts(name=fields[0], driver=fields[1], total_bytes=total, used_bytes=used))
    return gpus


def _clock() -> tuple[bool | None, float]:
    """Whether the kernel counts its clock as synchronised, and its bound of the error in seconds."""
    try:
        timex = ctypes.create_string_buffer(_TIMEX_BYTES)
        if ctypes.CDLL(None).adjtimex(timex) < 0:
            return None, 0.0
    except (OSError, AttributeError):
        return None, 0.0
    (error_us,) = struct.unpack_from("q", timex, _MAX_ERROR_AT)
    (status,) = struct.unpack_from("i", timex, _STATUS_AT)
    return not status & _UNSYNCHRONISED, error_us / 1e6


def _num_cpus() -> float:
    cores = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return min(cores, int(quota) / int(period)) if quota.isdigit() else cores


def _cgroup_bytes() -> int | None:
    """The limit of the cgroup's memory. None without one."""
    return _number(Path("/sys/fs/cgroup/memory.max"))


def _cgroup_room() -> int | None:
    used, most = _number(Path("/sys/fs/cgroup/memory.current")), _cgroup_bytes()
    return None if used is None or most is None else max(0, most - used)


def _huge_bytes() -> int:
    found = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        found[name] = int(value.split()[0])
    return found.get("HugePages_Total", 0) * found.get("Hugepagesize", 0) * 1024


def _number(file: Path) -> int | None:
    """None if the file has no number, such as `max`, or cannot be read."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _hard(limit: int) -> int | None:
    hard = resource.getrlimit(limit)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def _soft(limit: int) -> int | None:
    soft = resource.getrlimit(limit)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
