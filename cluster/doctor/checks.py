"""The checks of `baton doctor`: each collects facts (cluster/doctor/facts/) and judges them
(cluster/doctor/judgement/).

Checks with a common fact are one: they run beside each other, and each fact is collected once.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from cluster.config.application import AppConfig
from cluster.config.network import is_loopback
from cluster.doctor.facts import machine, nodes, places, services, software
from cluster.doctor.finding import CheckFinding
from cluster.doctor.judgement.machine import (
    judge_clock,
    judge_cpus,
    judge_gpus,
    judge_kernel,
    judge_limits,
    judge_memory,
    judge_shm,
    judge_skews,
)
from cluster.doctor.judgement.nodes import judge_ray
from cluster.doctor.judgement.places import (
    judge_disks,
    judge_key_files,
    judge_model,
    judge_names,
    judge_ports,
    judge_secrets,
    judge_tls,
)
from cluster.doctor.judgement.services import judge_postgres, judge_redis
from cluster.doctor.judgement.software import (
    judge_compiled,
    judge_engine,
    judge_nixl,
    judge_packages,
    judge_python,
    judge_transports,
)
from cluster.doctor.wanted import WantedMachine, wanted_by
from kvtransfer.transport.node import read_node
from kvtransfer.transport.topology import Device

USUAL_BOUND_S = 8.0
"""Time that a usual check has, in seconds. Then it counts as one that cannot tell. Longer waits longer for a file
system or a server that hangs; shorter fails on a busy machine.
"""
LOADING_BOUND_S = 150.0
"""The same of a check that loads vLLM, NIXL or Ray: longer than the times that these have."""


class Examinee(msgspec.Struct, frozen=True, kw_only=True):
    """What is checked."""

    conf: Path
    config: AppConfig | None
    """None if the config cannot be used. Checks that need one are left out."""
    ray: str = ""
    """Address of the Ray that the service would join. Empty if it starts its own."""

    @property
    def wanted(self) -> WantedMachine | None:
        return wanted_by(self.config) if self.config is not None else None


class MachineCheck(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    run: Callable[[Examinee], Iterable[CheckFinding]]
    bound_s: float = USUAL_BOUND_S
    needs_config: bool = True


def _software(_: Examinee) -> Iterator[CheckFinding]:
    yield judge_python((sys.version_info.major, sys.version_info.minor), sys.executable)
    yield judge_packages(software.package_facts(software.flavour_of_environment()))
    yield judge_compiled(*software.compiled_facts())


def _engine(subject: Examinee) -> Iterator[CheckFinding]:
    facts, wanted = software.engine_facts(subject.conf if subject.config else None), subject.wanted
    yield from judge_engine(facts, wants_gpus=wanted is not None and wanted.uses_gpus)
    if wanted is not None:
        yield from judge_gpus(machine.gpu_tool(), wanted, facts.cuda)


def _nixl(_: Examinee) -> Iterator[CheckFinding]:
    return judge_nixl(software.nixl_facts())


def _machine(subject: Examinee) -> Iterator[CheckFinding]:
    wanted, config = subject.wanted, subject.config
    assert wanted is not None
    assert config is not None
    facts = machine.machine_facts()
    node = read_node(Device.CUDA if wanted.uses_gpus else Device.CPU)
    if not subject.ray:  # with a cluster, other machines may run most replicas
        yield judge_memory(facts, wanted, places.model_facts(config.model).weights_bytes)
        yield judge_cpus(facts, wanted)
    yield judge_shm(facts, wanted)
    yield from judge_limits(facts, wanted, has_rdma=bool(node.rdma_ports))
    yield from judge_kernel(facts)
    yield judge_clock(facts)
    yield from judge_transports(wanted.transports, [port.name for port in node.rdma_ports], node.num_gpus)


def _model(subject: Examinee) -> Iterator[CheckFinding]:
    assert subject.config is not None
    yield judge_model(places.model_facts(subject.config.model))


def _ports(subject: Examinee) -> Iterator[CheckFinding]:
    assert subject.config is not None
    return judge_ports(places.port_facts(subject.config))


def _files(subject: Examinee) -> Iterator[CheckFinding]:
    config = subject.config
    assert config is not None
    host = config.internal_host
    is_one_machine = not subject.ray and host is not None and is_loopback(host)
    yield from judge_key_files(places.key_files(config))
    yield judge_secrets(places.secrets_set(), places.secret_refusals(), is_one_machine=is_one_machine)
    yield from judge_tls(places.tls_facts(config.network.tls))
    yield from judge_disks(places.disk_facts(config))


def _names(subject: Examinee) -> Iterator[CheckFinding]:
    assert subject.config is not None
    return judge_names(places.resolved_names(subject.config), places.network_error(subject.config))


def _postgres(subject: Examinee) -> Iterator[CheckFinding]:
    assert subject.config is not None
    urls = places.state_urls(subject.config)
    yield judge_postgres(services.postgres_facts(urls.get("database_url"), subject.config.state.data_dir))


def _redis(subject: Examinee) -> Iterator[CheckFinding]:
    assert subject.config is not None
    urls, folder = places.state_urls(subject.config), subject.config.state.data_dir
    own, limits = urls.get("redis_url"), urls.get("limits_redis_url") or urls.get("redis_url")
    yield judge_redis(services.redis_facts("Redis", own, folder, counts_limits=False))
    yield judge_redis(services.redis_facts("Redis of limits", limits, folder, counts_limits=True))


def _ray(subject: Examinee) -> Iterator[CheckFinding]:
    facts = nodes.ray_facts(subject.ray)
    yield from judge_ray(facts, subject.wanted)
    skews = {node.host: node.skew_s for node in facts.nodes if node.skew_s is not None}
    if skews:
        yield judge_skews(skews)


CHECKS = (
    MachineCheck(name="software", run=_software, needs_config=False),
    MachineCheck(name="vLLM", run=_engine, bound_s=LOADING_BOUND_S, needs_config=False),
    MachineCheck(name="NIXL", run=_nixl, bound_s=LOADING_BOUND_S, needs_config=False),
    MachineCheck(name="model", run=_model),
    MachineCheck(name="machine", run=_machine),
    MachineCheck(name="ports", run=_ports),
    MachineCheck(name="host names", run=_names),
    MachineCheck(name="files", run=_files),
    MachineCheck(name="PostgreSQL", run=_postgres, bound_s=2 * USUAL_BOUND_S),
    MachineCheck(name="Redis", run=_redis, bound_s=2 * USUAL_BOUND_S),
    MachineCheck(name="Ray", run=_ray, bound_s=LOADING_BOUND_S, needs_config=False),
)
