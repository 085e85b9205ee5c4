"""What each check of `baton doctor` makes of its facts: the result, and words that name the cause and the remedy."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from cluster.config.application import parse
from cluster.config.environment import ADMIN_KEY_VARIABLE, MASTER_KEY_VARIABLE, SECRET_VARIABLE
from cluster.doctor.finding import CheckFinding, CheckResult
from cluster.doctor.judgement.machine import (
    GpuFacts,
    GpuTool,
    MachineFacts,
    judge_clock,
    judge_cpus,
    judge_gpus,
    judge_kernel,
    judge_limits,
    judge_memory,
    judge_shm,
    judge_skews,
)
from cluster.doctor.judgement.nodes import NodeFacts, RayFacts, judge_ray
from cluster.doctor.judgement.places import (
    DiskFacts,
    FileFacts,
    ModelFacts,
    PortFacts,
    TlsFacts,
    judge_disks,
    judge_key_files,
    judge_model,
    judge_names,
    judge_ports,
    judge_secrets,
    judge_tls,
)
from cluster.doctor.judgement.services import PostgresFacts, RedisFacts, judge_postgres, judge_redis
from cluster.doctor.judgement.software import (
    EngineFacts,
    NixlFacts,
    PackageFacts,
    judge_compiled,
    judge_engine,
    judge_nixl,
    judge_packages,
    judge_python,
    judge_transports,
)
from cluster.doctor.wanted import GIB, WantedMachine, wanted_by
from cluster.messages.transport import Transport

OK, WARNING, FAILED, UNKNOWN = CheckResult.OK, CheckResult.WARNING, CheckResult.FAILED, CheckResult.UNKNOWN


def results(found: CheckFinding | Iterable[CheckFinding]) -> list[CheckResult]:
    return [one.result for one in ([found] if isinstance(found, CheckFinding) else found)]


def says(found: CheckFinding | Iterable[CheckFinding]) -> str:
    several = [found] if isinstance(found, CheckFinding) else found
    return "; ".join(f"{one.found}: {one.todo}" for one in several)


def a_machine(**fields: Any) -> MachineFacts:
    defaults: dict[str, Any] = {
        "total_bytes": 64 * GIB,
        "available_bytes": 60 * GIB,
        "num_cpus": 8.0,
        "hard_files": 1 << 20,
        "max_threads": None,
        "memlock_bytes": 8 << 20,
        "shm_total_bytes": 32 * GIB,
        "shm_free_bytes": 32 * GIB,
        "overcommit": 0,
        "huge_bytes": 0,
        "is_synchronised": True,
        "clock_error_s": 0.01,
    }
    return MachineFacts(**(defaults | fields))


def wanted(**args: Any) -> WantedMachine:
    engine = {"kv_cache_memory_bytes": GIB}
    return wanted_by(parse({"model": "demo", "engine": engine, **args}))


SMALL = wanted()
ON_GPUS = wanted(prefill={"gpus": 1}, decode={"gpus": 1})
CUDA = GpuTool(
    is_there=True,
    cuda="13.0",
    gpus=[GpuFacts(name="H100", driver="580.1", total_bytes=80 * GIB, used_bytes=0) for _ in range(2)],
)


def test_problems_have_a_remedy() -> None:
    """Of every check: what fails or warns says what to do."""
    found = [
        judge_python((3, 10), "python"),
        *judge_engine(EngineFacts(error="no module"), wants_gpus=False),
        judge_memory(a_machine(available_bytes=0), SMALL, None),
        *judge_limits(a_machine(hard_files=1024, max_threads=100), SMALL, has_rdma=True),
        *judge_gpus(GpuTool(is_there=False), ON_GPUS, None),
        *judge_ports([PortFacts(key="ingress.port", host="0.0.0.0", port=80, error="in use")]),
    ]
    assert all(one.todo for one in found if one.result in (FAILED, WARNING))
    assert {FAILED, WARNING} <= {one.result for one in found}


@pytest.mark.parametrize(("version", "result"), [((3, 11), OK), ((3, 12), FAILED)])
def test_python(version: tuple[int, int], result: CheckResult) -> None:
    assert results(judge_python(version, "python")) == [result]


@pytest.mark.parametrize(
    ("locked", "result", "words"),
    [
        ({"a": "1", "b": "2"}, OK, "all 2 of cpu.lock"),
        ({"a": "1", "c": "2"}, FAILED, "1 packages of cpu.lock are missing: c"),
        ({"a": "1", "b": "3"}, WARNING, "b 2 instead of 3"),
        (None, UNKNOWN, "cannot be read"),
    ],
)
def test_packages(locked: dict[str, str] | None, result: CheckResult, words: str) -> None:
    found = judge_packages(PackageFacts(locked=locked, installed={"a": "1", "b": "2", "d": "4"}, lock="cpu.lock"))
    assert (results(found), words in says(found)) == ([result], True)


@pytest.mark.parametrize(
    ("is_built", "is_off", "result"), [(True, False, OK), (False, False, WARNING), (True, True, WARNING)]
)
def test_compiled_modules(is_built: bool, is_off: bool, result: CheckResult) -> None:
    assert results(judge_compiled(is_built, is_off)) == [result]


@pytest.mark.parametrize(
    ("facts", "wants_gpus", "expected"),
    [
        (EngineFacts(vllm="0.32", device="cpu"), False, [OK]),
        (EngineFacts(vllm="0.32", device="cpu"), True, [FAILED]),
        (EngineFacts(vllm="0.32", device=""), False, [FAILED]),
        (EngineFacts(error="libcuda.so"), False, [FAILED]),
        (EngineFacts(error="slow", is_too_slow=True), False, [UNKNOWN]),
        (EngineFacts(vllm="0.32", device="cpu", refusal="no such argument"), False, [OK, FAILED]),
    ],
)
def test_vllm(facts: EngineFacts, wants_gpus: bool, expected: list[CheckResult]) -> None:
    assert results(judge_engine(facts, wants_gpus=wants_gpus)) == expected


@pytest.mark.parametrize(
    ("facts", "result"),
    [
        (NixlFacts(version="1", plugins=["UCX"], ucx_transports=["tcp", "cma"]), OK),
        (NixlFacts(version="1", plugins=["POSIX"]), FAILED),
        (NixlFacts(error="no module"), FAILED),
        (NixlFacts(error="slow", is_too_slow=True), UNKNOWN),
    ],
)
def test_nixl(facts: NixlFacts, result: CheckResult) -> None:
    assert results(judge_nixl(facts)) == [result]


@pytest.mark.parametrize(
    ("asked", "ports", "num_gpus", "result"),
    [
        ([], [], 0, OK),
        ([Transport.TCP], [], 0, OK),
        ([Transport.RDMA], [], 0, FAILED),
        ([Transport.RDMA], ["mlx5_0:1"], 0, OK),
        ([Transport.NVLINK], [], 1, FAILED),
        ([Transport.NVLINK], [], 2, OK),
        ([Transport.SHARED_MEMORY], [], 2, FAILED),
    ],
)
def test_transports(asked: list[Transport], ports: list[str], num_gpus: int, result: CheckResult) -> None:
    assert results(judge_transports(asked, ports, num_gpus)) == [result]


# 2 engines of 1 GiB KV each, 3 processes and the rest: 7.1 GiB
@pytest.mark.parametrize(
    ("fields", "of", "weights", "result"),
    [
        ({}, SMALL, 0, OK),
        ({"available_bytes": 7 * GIB}, SMALL, 0, WARNING),
        ({"available_bytes": 6 * GIB, "total_bytes": 7 * GIB}, SMALL, 0, FAILED),
        ({}, SMALL, 27 * GIB, WARNING),
        ({}, ON_GPUS, 300 * GIB, OK),
        ({}, wanted(prefill={"tiers": {"dram_gib": 100}}), 0, FAILED),
    ],
)
def test_memory(fields: dict[str, Any], of: WantedMachine, weights: int, result: CheckResult) -> None:
    assert results(judge_memory(a_machine(**fields), of, weights)) == [result]


def test_cpus_count_all_replicas_of_all_cells() -> None:
    cells = wanted(cells={"names": ["a", "b"]}, prefill={"cpus": 1, "replicas": 2}, decode={"cpus": 1})
    assert cells.cpus == pytest.approx(2 * 2 + 2 * 1 + 0.5 + 2 * 0.1)
    assert results(judge_cpus(a_machine(num_cpus=6.0), cells)) == [FAILED]
    assert results(judge_cpus(a_machine(), cells)) == [OK]


@pytest.mark.parametrize(
    ("fields", "of", "result"),
    [
        ({}, SMALL, OK),
        ({"shm_total_bytes": None, "shm_free_bytes": None}, SMALL, FAILED),
        ({"shm_free_bytes": 64 << 20}, SMALL, WARNING),
        ({}, wanted(decode={"tiers": {"dram_gib": 32}}), FAILED),
        ({}, wanted(decode={"tiers": {"dram_gib": 16}}), OK),
    ],
)
def test_shared_memory(fields: dict[str, Any], of: WantedMachine, result: CheckResult) -> None:
    assert results(judge_shm(a_machine(**fields), of)) == [result]


@pytest.mark.parametrize(
    ("fields", "has_rdma", "expected"),
    [
        ({}, False, [OK, OK]),
        ({"hard_files": 20_000}, False, [WARNING, OK]),
        ({"hard_files": 1_024}, False, [FAILED, OK]),
        ({"hard_files": None, "max_threads": 1_000}, False, [OK, WARNING]),
        ({}, True, [OK, OK, FAILED]),
        ({"memlock_bytes": None}, True, [OK, OK]),
    ],
)
def test_limits(fields: dict[str, Any], has_rdma: bool, expected: list[CheckResult]) -> None:
    assert results(judge_limits(a_machine(**fields), SMALL, has_rdma=has_rdma)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, []), ({"overcommit": 2}, [WARNING]), ({"overcommit": None, "huge_bytes": 32 * GIB}, [WARNING])],
)
def test_kernel_is_told_where_it_matters(fields: dict[str, Any], expected: list[CheckResult]) -> None:
    assert results(judge_kernel(a_machine(**fields))) == expected


@pytest.mark.parametrize(("is_synchronised", "result"), [(True, OK), (False, WARNING), (None, UNKNOWN)])
def test_clock(is_synchronised: bool | None, result: CheckResult) -> None:
    assert results(judge_clock(a_machine(is_synchronised=is_synchronised))) == [result]


@pytest.mark.parametrize(("skew_s", "result"), [(0.2, OK), (-1.5, WARNING)])
def test_clocks_of_nodes(skew_s: float, result: CheckResult) -> None:
    found = judge_skews({"n0": 0.01, "n1": skew_s})
    assert (results(found), "n1" in says(found)) == ([result], True)


@pytest.mark.parametrize(
    ("tool", "of", "cuda", "expected"),
    [
        (GpuTool(is_there=False), SMALL, None, []),
        (CUDA, SMALL, "12.8", [OK]),
        (CUDA, ON_GPUS, "12.8", [OK]),
        (CUDA, ON_GPUS, "13.1", [OK]),  # of one major version, drivers run newer minor versions
        (CUDA, ON_GPUS, "14.0", [FAILED]),
        (GpuTool(is_there=True, error="no driver"), ON_GPUS, "12.8", [FAILED]),
        (CUDA, wanted(prefill={"gpus": 1, "replicas": 4}, decode={"gpus": 1}), None, [WARNING]),
        (
            msgspec.structs.replace(CUDA, gpus=[msgspec.structs.replace(CUDA.gpus[0], used_bytes=40 * GIB)] * 2),
            ON_GPUS,
            None,
            [OK, WARNING],
        ),
    ],
)
def test_gpus(tool: GpuTool, of: WantedMachine, cuda: str | None, expected: list[CheckResult]) -> None:
    assert results(judge_gpus(tool, of, cuda)) == expected


@pytest.mark.parametrize(
    ("facts", "result"),
    [
        (ModelFacts(name="m", folder="/m", weights_bytes=GIB), OK),
        (ModelFacts(name="m", folder="/m", missing=["config.json"]), FAILED),
        (ModelFacts(name="/m", folder=None), FAILED),
        (ModelFacts(name="conf/models/absent", folder=None), FAILED),
        (ModelFacts(name="Qwen/Qwen3-8B", folder=None), WARNING),
        (ModelFacts(name="m", folder="/m", error="Permission denied"), FAILED),
    ],
)
def test_model(facts: ModelFacts, result: CheckResult) -> None:
    assert results(judge_model(facts)) == [result]


def test_port_that_is_taken_names_the_program() -> None:
    port = PortFacts(key="admin.port", host="127.0.0.1", port=8001, error="Address already in use", taken_by="nginx")
    found = list(judge_ports([port, PortFacts(key="ingress.port", host="127.0.0.1", port=8000)]))
    assert results(found) == [FAILED, OK]
    assert "nginx" in found[0].found
    assert "admin.port" in found[0].todo


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (FileFacts(path="k", mode=0o600), [OK]),
        (FileFacts(path="k", mode=0o644), [WARNING]),
        (FileFacts(path="k", mode=None), []),
        (FileFacts(path="k", mode=None, error="Permission denied"), [FAILED]),
    ],
)
def test_key_files(file: FileFacts, expected: list[CheckResult]) -> None:
    assert results(judge_key_files([file])) == expected


ALL_SET = dict.fromkeys((SECRET_VARIABLE, ADMIN_KEY_VARIABLE, MASTER_KEY_VARIABLE), True)


@pytest.mark.parametrize(
    ("environment", "refusals", "is_one_machine", "result"),
    [
        ({}, {}, True, OK),
        ({}, {}, False, WARNING),
        (ALL_SET, {}, False, OK),
        (ALL_SET, {SECRET_VARIABLE: "it has 3 characters"}, True, FAILED),
    ],
)
def test_secrets(
    environment: dict[str, bool], refusals: dict[str, str], is_one_machine: bool, result: CheckResult
) -> None:
    assert results(judge_secrets(environment, refusals, is_one_machine=is_one_machine)) == [result]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (None, []),
        (TlsFacts(left_s=86_400.0 * 90, key_mode=0o600), [OK]),
        (TlsFacts(left_s=86_400.0 * 90, key_mode=0o640), [WARNING, OK]),
        (TlsFacts(left_s=86_400.0 * 3), [WARNING]),
        (TlsFacts(left_s=-1.0), [FAILED]),
        (TlsFacts(error="network.tls.key: ..."), [FAILED]),
    ],
)
def test_tls(facts: TlsFacts | None, expected: list[CheckResult]) -> None:
    assert results(judge_tls(facts)) == expected


@pytest.mark.parametrize(
    ("disk", "result"),
    [
        (DiskFacts(key="state.data_dir", path="/d", free_bytes=50 * GIB), OK),
        (DiskFacts(key="state.data_dir", path="/d", free_bytes=1 * GIB), WARNING),
        (DiskFacts(key="decode.tiers.disk", path="/d", free_bytes=50 * GIB, needed_bytes=60 * GIB), WARNING),
        (DiskFacts(key="state.data_dir", path="/d", free_bytes=50 * GIB, is_writable=False), FAILED),
        (DiskFacts(key="state.data_dir", path="/d", free_bytes=0, error="Stale file handle"), FAILED),
    ],
)
def test_disks(disk: DiskFacts, result: CheckResult) -> None:
    assert results(judge_disks([disk])) == [result]


@pytest.mark.parametrize(
    ("resolved", "error", "expected"),
    [
        ({"db": "10.0.0.1"}, "", [OK]),
        ({"db": "10.0.0.1", "redis": None}, "", [FAILED]),
        ({}, "", [UNKNOWN]),
        ({"db": "10.0.0.1"}, "this node has no interface eth9", [FAILED, OK]),
    ],
)
def test_names(resolved: dict[str, str | None], error: str, expected: list[CheckResult]) -> None:
    assert results(judge_names(resolved, error)) == expected


@pytest.mark.parametrize(
    ("facts", "result"),
    [
        (PostgresFacts(is_embedded=True, version=18), OK),
        (PostgresFacts(is_embedded=False, version=12), FAILED),
        (PostgresFacts(is_embedded=False, version=16, may_create=False), FAILED),
        (PostgresFacts(is_embedded=False, version=16, bypasses_rows=True), WARNING),
        (PostgresFacts(is_embedded=False, error="connection refused"), FAILED),
    ],
)
def test_postgres(facts: PostgresFacts, result: CheckResult) -> None:
    assert results(judge_postgres(facts)) == [result]


@pytest.mark.parametrize(
    ("fields", "result"),
    [
        ({"version": 7}, OK),
        ({"version": 5}, FAILED),
        ({"version": 7, "may_run_scripts": False}, FAILED),
        ({"version": 7, "policy": "allkeys-lru", "counts_limits": True}, WARNING),
        ({"version": 7, "policy": "allkeys-lru"}, OK),
        ({"version": 7, "policy": "noeviction", "counts_limits": True}, OK),
        ({"error": "connection refused"}, FAILED),
    ],
)
def test_redis(fields: dict[str, Any], result: CheckResult) -> None:
    assert results(judge_redis(RedisFacts(use="Redis", is_embedded=False, **fields))) == [result]


NODE = NodeFacts(host="10.0.0.1", resources={"CPU": 4.0, "decode": 1.0}, labels={"cell": "a"})


@pytest.mark.parametrize(
    ("facts", "args", "expected"),
    [
        (RayFacts(address=""), {}, [OK]),
        (RayFacts(address="h:1", error="no answer"), {}, [FAILED]),
        (RayFacts(address="h:1", nodes=[NODE]), {}, [OK]),
        (RayFacts(address="h:1", nodes=[NODE]), {"decode": {"resources": {"decode": 1}}}, [OK]),
        (RayFacts(address="h:1", nodes=[NODE]), {"decode": {"resources": {"decode": 1}, "replicas": 2}}, [OK, WARNING]),
        (RayFacts(address="h:1", nodes=[NODE]), {"prefill": {"gpus": 1}}, [OK, FAILED]),
        (RayFacts(address="h:1", nodes=[NODE]), {"prefill": {"label_selector": {"cell": "b"}}}, [OK, FAILED]),
    ],
)
def test_nodes(facts: RayFacts, args: dict[str, Any], expected: list[CheckResult]) -> None:
    assert results(judge_ray(facts, wanted(**args))) == expected
