"""Memory, CPUs, limits, clock and GPUs of this machine, against what the config wants. Pure."""

from collections.abc import Iterator
from itertools import takewhile

import msgspec

from cluster.doctor.finding import CheckFinding, failed, gib, ok, unknown, warning
from cluster.doctor.wanted import OTHERS_BYTES, PROCESS_BYTES, WantedMachine

ENOUGH_FILES = 65_535
"""Open files that an engine asks for. As docs/network.md says."""
LEAST_THREADS = 4_096
"""Threads and processes of a user below which Ray and the engines may not start. Each engine has some hundred."""
LEAST_SHM_BYTES = 1 << 28
"""Free bytes of /dev/shm beside the DRAM tiers: NIXL, torch and Ray share memory there."""
NEVER_COMMITS_MORE = 2
"""Value of vm.overcommit_memory with which the kernel refuses memory that it cannot promise."""
MOST_HUGE_SHARE = 0.1
"""Share of the memory in reserved huge pages from which they are told of. Baton uses none of them."""
LARGEST_SKEW_S = 1.0
"""Difference of two clocks from which it is told, in seconds. Epochs, certificates and tokens compare clocks."""
GPU_TAKEN_SHARE = 0.1
"""Share of a GPU's memory that something else may have. vLLM takes 90 %, and does not start if that is not free."""


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    total_bytes: int
    available_bytes: int
    num_cpus: float
    """CPUs that this process may use: cores, and the quota of its cgroup."""
    hard_files: int | None
    """The hard limit of open files. None for no limit."""
    max_threads: int | None
    """The least of ulimit -u and the cgroup's pids.max. None for no limit."""
    memlock_bytes: int | None
    """Bytes that may be locked. None for no limit."""
    shm_total_bytes: int | None
    """None without /dev/shm."""
    shm_free_bytes: int | None
    overcommit: int | None
    """vm.overcommit_memory. None if it cannot be read."""
    huge_bytes: int
    """Memory in reserved huge pages."""
    is_synchronised: bool | None
    """Whether the kernel counts its clock as synchronised. None if it cannot be asked."""
    clock_error_s: float
    """The kernel's bound of the clock's error."""


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    driver: str
    total_bytes: int
    used_bytes: int


class GpuTool(msgspec.Struct, frozen=True, kw_only=True):
    """What nvidia-smi says."""

    is_there: bool
    gpus: list[GpuFacts] = []
    cuda: str = ""
    """The newest version of CUDA that the driver can run."""
    error: str = ""


def judge_memory(facts: MachineFacts, wanted: WantedMachine, weights_bytes: int | None) -> CheckFinding:
    """Engines on GPUs have weights and KV in the GPU's memory."""
    on_host = 0 if wanted.uses_gpus else wanted.num_engines * (weights_bytes or 0) + (wanted.kv_bytes or 0)
    needed = on_host + wanted.num_processes * PROCESS_BYTES + OTHERS_BYTES + wanted.dram_bytes
    found = f"{gib(facts.available_bytes)} of {gib(facts.total_bytes)} are free; the config takes about {gib(needed)}"
    if facts.available_bytes >= needed:
        return ok("memory", found)
    todo = "fewer replicas, a smaller kv_cache_memory_bytes or dram_gib, or end what takes the memory"
    if facts.total_bytes < needed:
        return failed("memory", found, f"{todo}; or spread the pools over nodes (docs/clusters.md)")
    return warning("memory", found, todo)


def judge_cpus(facts: MachineFacts, wanted: WantedMachine) -> CheckFinding:
    found = f"{facts.num_cpus:g} CPUs; the replicas reserve {wanted.cpus:g}"
    if wanted.cpus > facts.num_cpus:
        todo = "lower `cpus` or `replicas` of the sections, or add nodes: a replica without room never starts"
        return failed("CPUs", found, todo)
    return ok("CPUs", found)


def judge_shm(facts: MachineFacts, wanted: WantedMachine) -> CheckFinding:
    check = "/dev/shm"
    if facts.shm_total_bytes is None or facts.shm_free_bytes is None:
        return failed(check, "there is none", "mount a tmpfs there, or give the container --ipc=host or --shm-size")
    needed = wanted.dram_bytes + LEAST_SHM_BYTES
    tiers = f", the DRAM tiers take {gib(wanted.dram_bytes)}" if wanted.dram_bytes else ""
    found = f"{gib(facts.shm_free_bytes)} of {gib(facts.shm_total_bytes)} are free{tiers}"
    if facts.shm_free_bytes >= needed:
        return ok(check, found)
    todo = "a larger tmpfs (--shm-size of a container), or a smaller tiers.dram_gib (docs/tiers.md)"
    return failed(check, found, todo) if wanted.dram_bytes else warning(check, found, todo)


def judge_limits(facts: MachineFacts, wanted: WantedMachine, *, has_rdma: bool) -> Iterator[CheckFinding]:
    files = "no limit" if facts.hard_files is None else f"{facts.hard_files:,}"
    raise_files = "`ulimit -Hn 65535`, LimitNOFILE= of the systemd unit, or --ulimit nofile of the container"
    if facts.hard_files is not None and facts.hard_files < wanted.max_files:
        found = f"{files}; {wanted.max_files:,} are needed for ingress.max_connections"
        yield failed("open files", found, f"{raise_files}; or lower ingress.max_connections")
    elif facts.hard_files is not None and facts.hard_files < ENOUGH_FILES:
        yield warning("open files", f"{files}; an engine asks for {ENOUGH_FILES:,}", raise_files)
    else:
        yield ok("open files", files)
    threads = "no limit" if facts.max_threads is None else f"{facts.max_threads:,}"
    if facts.max_threads is not None and facts.max_threads < LEAST_THREADS:
        todo = "`ulimit -u`, TasksMax= of the systemd unit, or --pids-limit of the container"
        yield warning("threads", f"{threads}; Ray and the engines have some thousand", todo)
    else:
        yield ok("threads", threads)
    if has_rdma and facts.memlock_bytes is not None:
        found = f"{gib(facts.memlock_bytes)} may be locked, and RDMA locks the KV memory"
        yield failed("locked memory", found, "`ulimit -l unlimited`, or LimitMEMLOCK=infinity of the systemd unit")


def judge_kernel(facts: MachineFacts) -> Iterator[CheckFinding]:
    """Silent where nothing matters."""
    if facts.overcommit == NEVER_COMMITS_MORE:
        found = "vm.overcommit_memory is 2: engines and Redis reserve more memory than they use"
        yield warning("overcommit", found, "`sysctl vm.overcommit_memory=0`")
    if facts.huge_bytes > MOST_HUGE_SHARE * facts.total_bytes:
        found = f"{gib(facts.huge_bytes)} are reserved for huge pages, which Baton does not use"
        yield warning("huge pages", found, "`sysctl vm.nr_hugepages=0`, unless another program needs them")


def judge_clock(facts: MachineFacts) -> CheckFinding:
    if facts.is_synchronised is None:
        return unknown("clock", "the kernel does not tell whether it is synchronised")
    if facts.is_synchronised:
        return ok("clock", f"synchronised to {1e3 * facts.clock_error_s:.1f} ms")
    return warning(
        "clock",
        "it is not synchronised",
        "run chrony or systemd-timesyncd: nodes, tokens and certificates compare clocks. In a virtual machine the host "
        "may keep it right all the same",
    )


def judge_gpus(tool: GpuTool, wanted: WantedMachine, cuda: str | None) -> Iterator[CheckFinding]:
    """`cuda`: the version that torch was built with, or None."""
    if not wanted.uses_gpus:
        if tool.gpus:
            yield ok("GPU", f"{len(tool.gpus)} of {tool.gpus[0].name}; the config uses none")
        return
    if not tool.is_there or tool.error or not tool.gpus:
        why = tool.error or ("it lists no GPU" if tool.is_there else "there is no nvidia-smi")
        yield failed("GPU", why, "install NVIDIA's driver, or run the pools on nodes that have GPUs")
        return
    found = f"{len(tool.gpus)} of {tool.gpus[0].name}, driver {tool.gpus[0].driver}, for CUDA up to {tool.cuda or '?'}"
    if wanted.gpus > len(tool.gpus):
        todo = "fewer replicas, or more nodes (docs/clusters.md)"
        yield warning("GPU", f"{found}; the config wants {wanted.gpus:g}", todo)
    elif cuda and tool.cuda and _number(tool.cuda) < _number(cuda)[:1]:
        todo = f"a driver for CUDA {cuda} or later"
        yield failed("GPU", f"{found}; vLLM was built with CUDA {cuda}", todo)
    else:
        yield ok("GPU", found)
    taken = [gpu for gpu in tool.gpus if gpu.used_bytes > GPU_TAKEN_SHARE * gpu.total_bytes]
    if taken:
        most = max(gpu.used_bytes for gpu in taken)
        found = f"something has up to {gib(most)} of the memory of {len(taken)} GPUs"
        yield warning("GPU memory", found, "`nvidia-smi` names the processes: end them, or the engines do not start")


def judge_skews(skews: dict[str, float]) -> CheckFinding:
    """`skews`: seconds by which the clock of each node is ahead of this one."""
    worst = max(skews, key=lambda node: abs(skews[node]))
    found = f"{len(skews)} nodes, at most {abs(skews[worst]):.2f} s apart from this one ({worst})"
    if abs(skews[worst]) > LARGEST_SKEW_S:
        return warning("clocks of nodes", found, "run chrony or systemd-timesyncd on every node")
    return ok("clocks of nodes", found)


def _number(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple(int(part) for part in takewhile(str.isdigit, parts))
