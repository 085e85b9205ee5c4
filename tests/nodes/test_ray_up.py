"""A cluster of four nodes, from `ray up` to `ray down`."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.drills.client import ANSWERED
from tests.drills.participants import MODEL
from tests.drills.processes import SCHEDULER, LiveProcesses
from tests.drills.traffic import Traffic
from tests.nodes.ray_up import DECODE, HEAD, INGRESS, PREFILL, RayUp
from tests.real_cluster.service import (
    CONTROLLER_PROCESS,
    DECODE_PROCESS,
    INGRESS_PROCESS,
    PREFILL_PROCESS,
    SCHEDULER_PROCESS,
    wait_for,
)

pytestmark = pytest.mark.timeout(600)

READY_WITHIN_S = 240.0
BACK_WITHIN_S = 120.0
SILENT_FOR_S = 5.0
"""Longest time without a token while the head is away."""
NUM_WITHOUT_HEAD = 6
"""Streams that must have ended well without a head: two of each thread of the traffic, so that one has begun then."""
LISTEN = "0A"
"""A state of a socket in /proc/net/tcp."""
NUM_REPLICAS = {PREFILL: 1, DECODE: 1}
PLACES = {
    CONTROLLER_PROCESS: HEAD,
    INGRESS_PROCESS: INGRESS,
    SCHEDULER_PROCESS: INGRESS,
    PREFILL_PROCESS: PREFILL,
    DECODE_PROCESS: DECODE,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayUp]:
    running = RayUp(tmp_path_factory.mktemp("up"), NUM_REPLICAS)
    try:
        running.deploy()
        wait_for(running.is_ready, READY_WITHIN_S, interval_s=0.5)
        yield running
        running.down()
        assert running.cloud.names({}) == []
    finally:
        left = running.close()
    assert not left, f"still running after the nodes were switched off: {left}"


def test_each_deployment_has_a_node_type_of_its_own(cluster: RayUp) -> None:
    for process, node_type in PLACES.items():
        (name,) = cluster.names(node_type)
        on_node = cluster.cloud.node(name).processes()
        assert {replica in on_node for replica in cluster.processes(process)} == {True}, process


def test_answer_is_prefilled_on_one_node_and_decoded_on_another(cluster: RayUp) -> None:
    body = {"model": MODEL, "prompt": " ".join(str(number) for number in range(200)), "max_tokens": 20}
    live = LiveProcesses(cluster)
    live.wait_until_quiet(1, BACK_WITHIN_S)  # until then, the link is measured by handoffs of its own
    before = live.snapshot()
    answer = cluster.post("/v1/completions", body, {"x-baton-path": "P->D"}).raise_for_status().json()
    after = live.snapshot()
    assert answer["usage"]["completion_tokens"] == 20
    pulled = {"pool": DECODE, "source": "pulled"}
    name = "baton_prompt_tokens_total"
    assert after.total(name, **pulled) - before.total(name, **pulled) == answer["usage"]["prompt_tokens"]
    (link,) = cluster.of_operators("/baton/links").json()["links"]
    assert (link["prefill_node"], link["decode_node"]) == (cluster.address(PREFILL), cluster.address(DECODE))
    assert link["is_proved"]


def test_scheduler_answers_nobody_who_does_not_speak_tls(cluster: RayUp) -> None:
    turned_away = {"deployment": SCHEDULER, "reason": "no_tls"}
    name = "baton_strangers_total"
    live = LiveProcesses(cluster)
    before = live.snapshot().total(name, **turned_away)
    (scheduler,) = cluster.processes(SCHEDULER_PROCESS)
    for port in _listening_ports(scheduler):
        with socket.create_connection((cluster.host, port), timeout=5) as stranger, suppress(TimeoutError, OSError):
            stranger.sendall(b"in clear")
            stranger.recv(1)
    assert live.snapshot().total(name, **turned_away) > before


def test_requests_are_served_without_a_head_and_it_comes_back(cluster: RayUp) -> None:
    """The node is switched off and on again, with its disk: Ray's GCS, its dashboard and Serve's controller end."""
    (head,) = cluster.names(HEAD)
    workers = {process for name in PLACES if name != CONTROLLER_PROCESS for process in cluster.processes(name)}
    traffic = Traffic(lambda: cluster.host, cluster.port, seed=0)
    try:
        wait_for(lambda: traffic.outcomes[ANSWERED] > 0, BACK_WITHIN_S)
        struck_at = time.monotonic()
        cluster.cloud.restart_node(head)
        num_before = traffic.outcomes[ANSWERED]
        wait_for(lambda: traffic.outcomes[ANSWERED] >= num_before + NUM_WITHOUT_HEAD, BACK_WITHIN_S)
        cluster.up()
        wait_for(lambda: cluster.processes(CONTROLLER_PROCESS), BACK_WITHIN_S)
    finally:
        traffic.stop()
    assert set(traffic.outcomes) == {ANSWERED}, traffic.errors[:3]
    assert traffic.longest_silence_s(struck_at) < SILENT_FOR_S
    assert all(process.is_running() for process in workers)


def _listening_ports(process: psutil.Process) -> list[int]:
    """Of a process on a node, whose sockets psutil looks for on this machine."""
    files = [str(one.readlink()) for one in Path(f"/proc/{process.pid}/fd").iterdir()]
    lines = [line.split() for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]]
    listening = [line for line in lines if line[3] == LISTEN and f"socket:[{line[9]}]" in files]
    return [int(line[1].partition(":")[2], 16) for line in listening]
