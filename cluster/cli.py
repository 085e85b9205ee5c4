"""The `baton` command.

`baton serve` is `serve run` with a face: it applies --port and --model to the Serve config, shows progress while the
engines start, says when the service is ready, and stops everything it started on Ctrl-C. `baton probe` asks a running
service how its workers are linked. `baton tenant` names the tenant of an API key. `baton compile` makes machine code of
what decides.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

import msgspec
import psutil
import yaml

from api.identity.tenants import tenant_of_key
from cluster import compiler
from cluster.config.application import parse
from cluster.config.repository import REPO_ROOT
from cluster.local_postgres import POSTGRES_FOLDER, LocalPostgres
from cluster.local_redis import REDIS_FOLDER, LocalRedis
from cluster.simulate import command as simulate
from kvtransfer.link_table import LinkTable, render

ALL_INTERFACES, LOOPBACK = "0.0.0.0", "127.0.0.1"
LOG_FILE = Path(".baton/logs/serve.log")
START_TIMEOUT_S = 1800.0
"""Loading a large model over a network file system takes this long at worst."""
FAILED_STARTS = 2
"""One failed start may be an accident, a second one is the configuration."""
EXCERPT_ERRORS = 4
EXCERPT_LINES = 20
POLL_S = 1.0
PROBE_TIMEOUT_S = 10.0
_PROCESS_NAME = re.compile(r"(?m)^\x1b\[\d+m\(.*?\)\x1b\[0m ")
"""Ray's coloured prefix of a worker's line."""
_ERROR = re.compile(r"(?m)^[\w.]+(?:Error|Exception): (?!Traceback).+(?:\n(?!Traceback|The above|  File|\s*$).+){0,4}")
"""The end of a traceback: the error, and what its message goes on with."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The service is on this machine: no proxy of the environment."""
STOP_TIMEOUT_S = 3.0
"""What Ray gets to stop by itself, before what is left of it is killed."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="baton", description="Disaggregated prefill/decode LLM serving on Ray and vLLM."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    serve = commands.add_parser("serve", help="start the service and wait until it is stopped")
    serve.add_argument("conf", nargs="?", type=Path, default=Path("conf/local.yaml"), help="Serve config (%(default)s)")
    serve.add_argument("--port", type=int, help="HTTP port (the config's)")
    serve.add_argument("--model", help="model folder or hub name (the config's)")
    serve.set_defaults(run=_serve)
    probe = commands.add_parser(
        "probe",
        help="show how KV blocks travel in a running service, and how fast",
        description="Each pair of a prefill and a decode worker, with the latency and bandwidth that the start-up "
        "probe measured, and the transport settings of each worker. Ends with 1 when the service does not answer, or "
        "has no link that is proved.",
    )
    probe.add_argument("--url", default="http://127.0.0.1:8000", help="address of the service (%(default)s)")
    probe.add_argument("--json", action="store_true", help="print what GET /baton/links answers")
    probe.set_defaults(run=_probe)
    tenant = commands.add_parser(
        "tenant",
        help="show what the tenant of an API key is called",
        description="Reads an API key from standard input, and prints its tenant's name in `state.tenants`.",
    )
    tenant.set_defaults(run=_tenant)
    compiler.add_parser(commands)
    simulate.add_parser(commands)
    arguments = parser.parse_args()
    sys.exit(arguments.run(arguments))


def _serve(arguments: argparse.Namespace) -> int:
    try:
        config = configured(yaml.safe_load(arguments.conf.read_text()), arguments.port, arguments.model)
        ingress = parse(config["applications"][0]["args"]).ingress
        _require_free(ingress.host, ingress.port)
    except (OSError, ValueError, yaml.YAMLError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return 2
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as rendered:
        yaml.safe_dump(config, rendered)
        rendered.flush()
        return _Service(Path(rendered.name), config).run()


def _probe(arguments: argparse.Namespace) -> int:
    url = f"{arguments.url.rstrip('/')}/baton/links"
    try:
        with _DIRECT.open(url, timeout=PROBE_TIMEOUT_S) as response:
            body = response.read()
        table = msgspec.json.decode(body, type=LinkTable)
    except urllib.error.HTTPError as error:
        print(f"baton: {url} answers {error.code} {error.reason}", file=sys.stderr)
        return 1
    except (OSError, HTTPException) as error:
        cause = getattr(error, "reason", error)
        print(f"baton: no service answers at {arguments.url} ({cause}); `baton serve` starts one", file=sys.stderr)
        return 1
    except ValueError as error:  # of the URL, or of what is not Baton's answer
        print(f"baton: {url} is not a Baton service: {error}", file=sys.stderr)
        return 1
    print(json.dumps(json.loads(body), indent=2) if arguments.json else render(table))
    return 0 if any(link.is_proved for link in table.links) else 1


def _tenant(arguments: argparse.Namespace) -> int:
    key = sys.stdin.readline().strip()
    if not key:
        print("baton: there is no API key on standard input", file=sys.stderr)
        return 2
    print(tenant_of_key(key))
    return 0


def configured(config: dict[str, Any], port: int | None, model: str | None) -> dict[str, Any]:
    """A Serve config with the command line applied.

    Raises:
        ValueError: it is not a Serve config with one Baton application, or its args are invalid.
    """
    if not isinstance(config, dict) or len(config.get("applications") or []) != 1:
        raise ValueError("the config must be a Serve config with exactly one application")
    application = config["applications"][0]
    args = {**(application.get("args") or {})}
    if port is not None:
        args["ingress"] = {**(args.get("ingress") or {}), "port": port}
    if model is not None and model.startswith(("/", ".")) and not Path(model).is_dir():
        raise ValueError(f"there is no model folder {model}")
    if model is not None:
        args["model"] = str(Path(model).resolve()) if Path(model).is_dir() else model
    parse(args)
    # The ingress listens by itself: Serve's own proxy would take its port.
    return {**config, "proxy_location": "Disabled", "applications": [{**application, "args": args}]}


def has_failed_to_start(log: str) -> bool:
    """Whether Serve's log says that the application cannot be built, or that replicas fail again and again. Serve
    itself would go on trying.
    """
    return "failed with exception:" in log or log.count("the replica will be stopped") >= FAILED_STARTS


def excerpt(log: str) -> str:
    """What a log has to say about a failure: the errors that it names, each once, or else its end."""
    log = _PROCESS_NAME.sub("", log)
    causes = dict.fromkeys(_ERROR.findall(log))
    return "\n".join(list(causes)[-EXCERPT_ERRORS:] or log.splitlines()[-EXCERPT_LINES:])


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another with PORT= or --port"
            ) from error


class _Service:
    """One `serve run` process and everything it starts."""

    def __init__(self, config_file: Path, config: dict[str, Any]) -> None:
        self._config_file = config_file
        args = parse(config["applications"][0]["args"])
        self._model = args.model_name
        self._state = args.state
        host = LOOPBACK if args.ingress.host == ALL_INTERFACES else args.ingress.host
        self._url = f"http://{host}:{args.ingress.port}"
        self._wanted = {"prefill_workers": args.prefill.replicas, "decode_workers": args.decode.replicas}
        self._stopping = threading.Event()
        self._started_at = time.monotonic()

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stopping.set())
        LOG_FILE.parent.mkdir(parents=True, exist_ok=True)
        print(f"Starting Baton with model {self._model} (log: {LOG_FILE})", flush=True)
        with LOG_FILE.open("wb") as log:
            process = self._spawn(log)
            try:
                if self._wait_until_ready(process):
                    self._greet()
                    self._wait_for_end(process)
            finally:
                stopped_by_user = self._stopping.is_set()
                said = LOG_FILE.read_text(errors="replace")  # before the stop adds to it
                if stopped_by_user:
                    print("\nStopping ...", flush=True)
                _stop(process)
                self._stop_services()
        if stopped_by_user:
            print("Stopped.", flush=True)
            return 0
        print(f"baton: the service did not start, or ended. {LOG_FILE} says:\n{excerpt(said)}", file=sys.stderr)
        return 1

    def _spawn(self, log: Any) -> psutil.Popen:
        # A session of its own: Ctrl-C in the terminal reaches this process alone, which then stops the others in order.
        return psutil.Popen(
            [str(Path(sys.executable).with_name("serve")), "run", str(self._config_file)],
            cwd=REPO_ROOT,
            env={**_environment(), **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _wait_until_ready(self, process: psutil.Popen) -> bool:
        shown = None
        while not self._stopping.wait(POLL_S) and process.poll() is None:
            state = self._readiness()
            elapsed_s = time.monotonic() - self._started_at
            line = self._progress(state)
            if line != shown:
                print(f"[{elapsed_s:4.0f} s] {line}", flush=True)
                shown = line
            if state.get("ready"):
                return True
            if elapsed_s > START_TIMEOUT_S or has_failed_to_start(LOG_FILE.read_text(errors="replace")):
                return False
        return False

    def _readiness(self) -> dict[str, Any]:
        """What /readyz says; empty while nothing answers."""
        try:
            with _DIRECT.open(f"{self._url}/readyz", timeout=5) as response:
                return _object(response.read())
        except urllib.error.HTTPError as error:
            return _object(error.read())
        except (OSError, HTTPException):
            return {}

    def _progress(self, state: dict[str, Any]) -> str:
        if "ready" not in state:
            return "starting Ray and the ingress"
        pools = ", ".join(f"{state[pool]}/{wanted} {pool.replace('_', ' ')}" for pool, wanted in self._wanted.items())
        return f"ingress up; engines loaded: {pools}; connected pairs: {state['connected_pairs']}"

    def _greet(self) -> None:
        body = json.dumps(
            {
                "model": self._model,
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "stream": True,
            }
        )
        print(
            f"\nBaton is ready on {self._url} (OpenAI API at {self._url}/v1). Ctrl-C stops it. Try:\n\n"
            f"  curl -N {self._url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n",
            flush=True,
        )

    def _stop_services(self) -> None:
        """Our own, which the ingress replicas have stopped, unless they were killed."""
        if self._state.database_url is None:
            LocalPostgres(REPO_ROOT / self._state.data_dir / POSTGRES_FOLDER).stop()
        if self._state.redis_url is None:
            LocalRedis(REPO_ROOT / self._state.data_dir / REDIS_FOLDER).stop()

    def _wait_for_end(self, process: psutil.Popen) -> None:
        while not self._stopping.wait(POLL_S) and process.poll() is None:
            pass


def _object(body: bytes) -> dict[str, Any]:
    return dict(json.loads(body)) if body.startswith(b"{") else {}


def _environment() -> dict[str, str]:
    """Defaults for `serve run`. RAY_ADDRESS: a cluster of its own, unless the operator names one."""
    return {
        "RAY_ADDRESS": "local",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray's default, 15, is for batch work: whatever else runs would delay tokens
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",  # Serve's 0.1 burns 3 % of a core while nothing happens
        "PYTHONPATH": str(REPO_ROOT),
        "PYTHONUNBUFFERED": "1",
    }


def _stop(process: psutil.Popen) -> None:
    """End `serve run` and all that it started; what does not end by itself in time is killed."""
    family = _descendants(process)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    psutil.wait_procs([process], timeout=STOP_TIMEOUT_S)
    for member in {*family, *_descendants(process), process}:
        _kill(member)
    psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
