"""The speed of a link between real engines, as `baton probe` and the metrics page tell of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.real_cluster.service import Service, wait_for

MAX_LATENCY_S = 1.0
MIN_BYTES_PER_S, MAX_BYTES_PER_S = 1e6, 1e12


def test_probe_lists_the_one_link_with_what_it_measured(service: Service) -> None:
    wait_for(lambda: _probe(service)["links"][0]["bytes_per_s"] is not None, timeout_s=60)
    table = _probe(service)
    (link,) = table["links"]
    assert link["is_proved"]
    assert link["transport"] == "shared_memory"
    assert 0 <= link["latency_s"] < MAX_LATENCY_S
    assert MIN_BYTES_PER_S < link["bytes_per_s"] < MAX_BYTES_PER_S
    assert {worker["worker"]: worker["pool"] for worker in table["workers"]} == {
        link["prefill"]: "prefill",
        link["decode"]: "decode",
    }
    for worker in table["workers"]:
        assert ["UCX_TLS", "tcp,cma"] in [setting[:2] for setting in worker["settings"]]


def test_speed_of_the_link_is_on_the_metrics_page(service: Service) -> None:
    (link,) = _probe(service)["links"]
    pair = {"prefill": link["prefill"], "decode": link["decode"]}
    assert service.metric("baton_link_latency_seconds", **pair) == link["latency_s"]
    assert service.metric("baton_link_bytes_per_second", **pair) == link["bytes_per_s"]


def test_measuring_leaves_no_block_pinned(service: Service) -> None:
    wait_for(service.is_idle, timeout_s=10)


def _probe(service: Service) -> dict[str, list[dict[str, Any]]]:
    command = [str(Path(sys.executable).with_name("baton")), "probe", "--url", service.admin_url, "--json"]
    done = subprocess.run(command, env=service.as_operator(), capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))
