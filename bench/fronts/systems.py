"""The systems that are compared: how each is started, known to be ready, and stopped.

The engines that hand over use vLLM's NIXL connector with a progress thread that sleeps, in every system
(`connector.py`; Baton's adds its own). On a machine with few cores its spin would be all that is measured.
"""

import json
import re
import subprocess
import sys
import time
import urllib.request
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import yaml

from bench.fronts import census
from bench.fronts.child import Child, Driver
from bench.fronts.free_ports import free_port
from bench.fronts.setting import HOST, Setting

ROUTER_VERSION = "0.1.17"
LOAD_GENERATOR = "load generator"
"""Its name in the census, where it is a system like the others."""
POLL_S = 0.5
KV_PRODUCER, KV_CONSUMER = "kv_producer", "kv_consumer"
_PULLED = re.compile(r'^vllm:prompt_tokens_by_source_total\{.*source="external_kv_transfer".*\} (\S+)$', re.MULTILINE)
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Everything is on this machine: no proxy of the environment."""


class System(ABC):
    """One system under load. `driver` puts the load on it, over HTTP if there is a `port`."""

    name: str

    def __init__(self, setting: Setting, driver: Driver) -> None:
        """`driver` is the one that all HTTP systems share."""
        self.driver = driver
        self.port: int | None = free_port()
        self._setting = setting
        self._children: list[Child] = []

    @abstractmethod
    def start(self) -> None:
        """Returns when it is ready.

        Raises:
            FailedStart: one of its processes ended, or was not ready in time.
        """

    def interrupt(self) -> None:
        """Ask it to stop."""
        for child in self._children:
            child.interrupt()

    def stop(self) -> None:
        """Wait for it to stop, then end what is left of it."""
        for child in self._children:
            child.wait()
        census.kill(self.name)

    def pulled_tokens(self) -> float | None:
        """Prompt tokens that the decode engine has taken from the prefill engine so far. None: nothing tells."""
        return None

    def _spawn(self, part: str, argv: list[str], **environment: str) -> Child:
        marked = {**self._setting.environment(self.name, part), **environment}
        child = Child(argv, marked, self._setting.log(self.name, part), cwd=self._setting.folder)
        self._children.append(child)
        return child

    def _spawn_vllm(
        self, part: str, port: int, kv_role: str | None = None, engine: dict[str, Any] | None = None
    ) -> Callable[[], None]:
        """What `vllm serve` runs; its own script needs package metadata that vLLM's CPU wheel lacks. Returns the wait
        for it. `engine`: arguments in place of those that all engines have.
        """
        argv = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--host", HOST]
        argv += ["--port", str(port), "--model", self._setting.model, "--served-model-name", served_name(self._setting)]
        argv += _command_line(self._setting.engine | (engine or {}))
        if kv_role:
            argv += ["--kv-transfer-config", json.dumps(kv_transfer(kv_role))]
        child = self._spawn(part, argv, VLLM_NIXL_SIDE_CHANNEL_PORT=str(free_port()))
        return lambda: wait(child, lambda: get(port, "/health") is not None)


class Bare(System):
    """The floor: `bare.py` drives two engines in its own process."""

    name = "bare"

    def start(self) -> None:
        engine = {**self._setting.engine, "model": self._setting.model}
        transfers = [kv_transfer(role) for role in (KV_PRODUCER, KV_CONSUMER)]
        self.port = None
        self.driver = Driver(
            "bench.fronts.bare",
            [json.dumps(argument) for argument in (engine, transfers, [free_port(), free_port()])],
            self._setting.environment(self.name, "driver"),
            self._setting.log(self.name, "driver"),
            cwd=self._setting.folder,
        )
        self._children.append(self.driver)
        wait(self.driver, self.driver.is_ready)


class Vllm(System):
    """`vllm serve` with one engine."""

    name = "vllm"

    def start(self) -> None:
        assert self.port
        self._spawn_vllm("API server", self.port)()


class VllmRouter(System):
    """vllm-router in P/D mode before pairs of `vllm serve`."""

    name = "vllm-router"

    def __init__(self, setting: Setting, driver: Driver, num_pairs: int = 1) -> None:
        super().__init__(setting, driver)
        self._prefill_ports = [free_port() for _ in range(num_pairs)]
        self._decode_ports = [free_port() for _ in range(num_pairs)]

    def start(self) -> None:
        router = installed_router(self._setting.folder)
        servers = [
            *self._spawn_pool("prefill API server", self._prefill_ports, KV_PRODUCER),
            *self._spawn_pool("decode API server", self._decode_ports, KV_CONSUMER),
        ]
        for ready in servers:
            ready()
        argv = [str(router), "--host", HOST, "--port", str(self.port), "--vllm-pd-disaggregation"]
        for option, ports in (("--prefill", self._prefill_ports), ("--decode", self._decode_ports)):
            argv += [argument for port in ports for argument in (option, f"http://{HOST}:{port}")]
        child = self._spawn("router", [*argv, "--prometheus-port", str(free_port())])
        wait(child, lambda: get(self.port, "/readiness") is not None)

    def pulled_tokens(self) -> float | None:
        return sum(map(_pulled, self._decode_ports))

    def _spawn_pool(self, part: str, ports: list[int], kv_role: str) -> list[Callable[[], None]]:
        names = [part] if len(ports) == 1 else [f"{part} {number}" for number in range(len(ports))]
        return [self._spawn_vllm(name, port, kv_role) for name, port in zip(names, ports, strict=True)]


class Baton(System):
    """`baton serve` with the config as it is but for the executor."""

    name = "baton"

    def __init__(self, setting: Setting, driver: Driver) -> None:
        super().__init__(setting, driver)
        self.admin_port = free_port()

    def start(self) -> None:
        conf = self._setting.folder / "baton.yaml"
        conf.write_text(yaml.safe_dump(self._setting.paced_conf))
        baton = Path(sys.executable).with_name("baton")
        ports = ["--port", str(self.port), "--admin-port", str(self.admin_port)]
        child = self._spawn("others", [str(baton), "serve", str(conf), *ports])
        wait(child, self._is_ready)

    def pulled_tokens(self) -> float | None:
        return _pulled(self.admin_port)

    def _is_ready(self) -> bool:
        body = get(self.port, "/readyz")
        return body is not None and bool(json.loads(body).get("ready"))


SYSTEMS: dict[str, type[System]] = {system.name: system for system in (Bare, Vllm, VllmRouter, Baton)}


def started_load_generator(setting: Setting) -> Driver:
    """What drives the HTTP systems; it ends when its pipe is closed."""
    environment = setting.environment(LOAD_GENERATOR, LOAD_GENERATOR)
    log = setting.log(LOAD_GENERATOR, "process")
    driver = Driver("bench.fronts.http_client", [served_name(setting)], environment, log, cwd=setting.folder)
    wait(driver, driver.is_ready)
    return driver


def installed_router(folder: Path) -> Path:
    """The pinned router's command, in an environment of its own, which the first call creates."""
    environment = folder / f"vllm-router-{ROUTER_VERSION}"
    command = environment / "bin" / "vllm-router"
    if not command.exists():
        print(f"installing vllm-router {ROUTER_VERSION} into {environment} (once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, f"vllm-router=={ROUTER_VERSION}"], check=True)
    return command


def kv_transfer(kv_role: str) -> dict[str, Any]:
    """vLLM's KV transfer config, as Baton's workers have it; but a handoff that fails is an error here, instead of a
    recomputation that nobody notices.
    """
    return {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "bench.fronts.connector",
        "kv_role": kv_role,
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "fail",
        "engine_id": str(uuid.uuid4()),
        "kv_connector_extra_config": {"kv_lease_duration": 30},
    }


def wait(child: Child, is_ready: Callable[[], bool]) -> None:
    """Raises FailedStart when the child ends or takes too long."""
    while not is_ready():
        child.require_starting()
        time.sleep(POLL_S)


def get(port: int | None, path: str) -> str | None:
    """The body of a 200; None while there is none."""
    try:
        with _DIRECT.open(f"http://{HOST}:{port}{path}", timeout=5) as response:
            return str(response.read().decode())
    except (OSError, HTTPException):
        return None


def _pulled(port: int | None) -> float:
    return sum(map(float, _PULLED.findall(get(port, "/metrics") or "")))


def served_name(setting: Setting) -> str:
    return Path(setting.model).name


def _command_line(engine: dict[str, Any]) -> list[str]:
    """Engine arguments as options of `vllm serve`."""
    options = []
    for name, value in engine.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        else:
            options += [f"--{option}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return options
