"""The `baton` command.

`baton serve` runs `serve run` for an operator: it applies --port, --admin-port and --model to the Serve config, shows
progress while the engines start, prints when the service is ready, and stops everything it started on Ctrl-C. The other
commands have modules of their own, which say what they do; `baton --help` lists them.
"""

import argparse
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from cluster.cli import audit, cells, plan, safety, simulate
from cluster.cli import compile as compiler
from cluster.cli import state as cli_state
from cluster.cli.accounts.first_key import how_to_send_a_key
from cluster.cli.accounts.keys import add_key_parser
from cluster.cli.accounts.tenants import add_project_parser
from cluster.cli.ask_service import MOST_ANSWER_BYTES, about_admin_port, add_service_options, ask
from cluster.cli.load import command as load
from cluster.cli.operate import doctor, drain, quality, replay, status, top, trace, why
from cluster.cli.reader import run_for_reader
from cluster.cli.serve_run import ServeRun
from cluster.cli.tenants import usage as cli_usage
from cluster.config.application import AppConfig, parse
from cluster.config.network import ALL_INTERFACES, LOOPBACK, is_loopback
from cluster.http_answer import answer_of
from cluster.network.certificates import use_certificates
from cluster.repository import REPO_ROOT
from cluster.services.postgres import POSTGRES_FOLDER, LocalPostgres
from cluster.services.redis import LIMITS_REDIS_FOLDER, REDIS_FOLDER, LocalRedis
from kvtransfer.transport.link_table import LinkTable, render

LOG_FILE = Path(".baton/logs/serve.log")
START_TIMEOUT_S = 1800.0
"""Time until the service must be ready, in seconds. Then `baton serve` stops it and ends with 1. A large model from a
network file system may take this long to load. Longer reports a service that hangs later; shorter stops a service that
is still loading.
"""
FAILED_STARTS = 2
"""Failed starts of a replica after which `baton serve` gives up. One failed start may be an accident, the second one is
the configuration. More delays the error; fewer gives up after an accident.
"""
EXCERPT_ERRORS = 4
"""Most errors that the excerpt of a log shows."""
EXCERPT_LINES = 20
"""Last lines of a log that are shown if it contains no error."""
POLL_S = 1.0
"""Time between two checks of the service, in seconds. Longer notices a ready or ended service later; shorter sends more
requests to it.
"""
READY_TIMEOUT_S = 5.0
"""Time for one request to /readyz, in seconds. Then the service counts as not answering yet. Longer shows progress
later while an ingress hangs; shorter takes a busy ingress for one that does not answer.
"""
_PROCESS_NAME = re.compile(r"(?m)^\x1b\[\d+m\(.*?\)\x1b\[0m ")
"""Ray's coloured prefix of a line of a worker."""
_ERROR = re.compile(r"(?m)^[\w.]+(?:Error|Exception): (?!Traceback).+(?:\n(?!Traceback|The above|  File|\s*$).+){0,4}")
"""The end of a traceback: the error, and the next lines of its message."""
_OWN_CLUSTER = "local"
"""The RAY_ADDRESS with which Ray starts a new cluster."""
_RAY_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""With this variable, Ray takes 127.0.0.1 for its node's address, and everything that Ray starts listens there.
`ray.init` replaces a loopback address in its arguments by the node's own address.
"""
QUIET_RAY = {
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1",  # Serve's 0.1 burns 3 % of a core
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "10000",  # Serve's 100 wakes each replica ten times a second per handle
    "RAY_enable_metrics_collection": "0",  # Baton has its own metrics (`GET /metrics`)
    "RAY_event_stats": "0",  # statistics about Ray's own event loops
    "RAY_task_events_report_interval_ms": "0",  # a history of Serve's calls, which nobody reads
    "REPORTER_UPDATE_INTERVAL_MS": "60000",  # statistics of processes in Ray's web pages
    "LOG_NAME_UPDATE_INTERVAL_S": "2",  # looks for new log files; the lines of known ones come at once
}
"""Settings of the Ray that `baton serve` starts, with which Ray does less while nothing happens. An operator's own
values win. Longer intervals save little more, and with a longer control loop Serve replaces a dead replica later. With
shorter ones an idle service takes more CPU time.
"""


def main() -> None:
    sys.exit(run_for_reader(argument_parser().parse_args()))


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baton", description="Disaggregated prefill/decode LLM serving on Ray and vLLM."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    serve = commands.add_parser(
        "serve",
        help="start the service and wait until it is stopped",
        description="Starts the service and waits until it is stopped. A configuration that cannot work is refused: "
        "arguments of Baton, and engine arguments that Baton or vLLM does not have, before anything starts; models and "
        "engines that Baton cannot serve, before the weights are loaded; pools that cannot hand KV blocks over to each "
        "other, when both have started. docs/models.md lists what is refused. The command then prints the reason and "
        "ends with 1, or with 2 if nothing has been started.",
    )
    serve.add_argument(
        "conf", nargs="?", type=Path, default=Path("conf/local.yaml"), help="Serve config (default: %(default)s)"
    )
    serve.add_argument("--port", type=int, help="HTTP port (default: the port of the config)")
    serve.add_argument("--admin-port", type=int, help="port of operators (default: the admin port of the config)")
    serve.add_argument("--model", help="model folder or hub name (default: the model of the config)")
    serve.set_defaults(run=_serve)
    probe = commands.add_parser(
        "probe",
        help="show how KV blocks travel in a running service, and how fast",
        description="Shows each pair of a prefill and a decode worker with the latency and bandwidth of its link, and "
        "the transport settings of each worker. Of each class of links, one is measured while its workers have no "
        "requests. Ends with 1 if the service does not answer or has no proved link.",
    )
    add_service_options(probe)
    probe.add_argument("--json", action="store_true", help="print the answer of GET /baton/links")
    probe.set_defaults(run=_probe)
    doctor.add_parser(commands)
    status.add_parser(commands)
    why.add_parser(commands)
    cells.add_parser(commands)
    drain.add_parser(commands)
    top.add_parser(commands)
    trace.add_parser(commands)
    quality.add_parser(commands)
    cli_state.add_tenant_parser(commands)
    add_project_parser(commands)
    add_key_parser(commands)
    cli_state.add_state_parser(commands)
    audit.add_parser(commands)
    safety.add_parser(commands)
    cli_usage.add_parser(commands)
    compiler.add_parser(commands)
    simulate.add_parser(commands)
    plan.add_parser(commands)
    replay.add_parser(commands)
    load.add_parser(commands)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    try:
        ports = {"ingress": arguments.port, "admin": arguments.admin_port}
        config = configured(yaml.safe_load(arguments.conf.read_text()), ports, arguments.model)
        args = parse(config["applications"][0]["args"])
        _require_free(args.ingress.host, args.ingress.port, "PORT= or --port")
        _require_free(args.admin.host, args.admin.port, "ADMIN_PORT= or --admin-port")
        if os.environ.get("RAY_ADDRESS", _OWN_CLUSTER) == _OWN_CLUSTER:  # otherwise other nodes may have the files
            use_certificates(args.network.tls)
    except (OSError, ValueError, yaml.YAMLError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return 2
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as rendered:
        yaml.safe_dump(config, rendered)
        rendered.flush()
        serve = str(Path(sys.executable).with_name("serve"))
        return RunningService(Path(rendered.name), config, [serve]).run()


def _probe(arguments: argparse.Namespace) -> int:
    answer = ask(arguments, "/baton/links", LinkTable)
    if answer is None:
        return 1
    table, body = answer
    print(json.dumps(json.loads(body), indent=2) if arguments.json else render(table))
    return 0 if any(link.is_proved for link in table.links) else 1


def configured(config: dict[str, Any], ports: Mapping[str, int | None], model: str | None) -> dict[str, Any]:
    """A Serve config with the options of the command line. `ports`: by section of the config; None for its own.

    Raises:
        ValueError: The config is not a Serve config with one Baton application, or its args are invalid.
    """
    if not isinstance(config, dict) or len(config.get("applications") or []) != 1:
        raise ValueError("the config must be a Serve config with exactly one application")
    application = config["applications"][0]
    args = {**(application.get("args") or {})}
    for section, port in ports.items():
        if port is not None:
            args[section] = {**(args.get(section) or {}), "port": port}
    if model is not None and model.startswith(("/", ".")) and not Path(model).is_dir():
        raise ValueError(f"there is no model folder {model}")
    if model is not None:
        args["model"] = str(Path(model).resolve()) if Path(model).is_dir() else model
    parse(args)
    # The ingress listens by itself: Serve's own proxy would take its port.
    return {**config, "proxy_location": "Disabled", "applications": [{**application, "args": args}]}


def has_failed_to_start(log: str) -> bool:
    """Whether Serve's log shows that the application cannot be built, or that replicas fail repeatedly. Serve itself
    would try forever.
    """
    return "failed with exception:" in log or log.count("the replica will be stopped") >= FAILED_STARTS


def mismatch(state: Mapping[str, Any], wanted: Mapping[str, int]) -> str | None:
    """Why the service will never be ready, if all workers have started and no pair of them can hand over. `state`: the
    body of /readyz; `wanted`: the number of workers, by its name there.
    """
    why = state.get("mismatch")
    if why is None or any(state[pool] < number for pool, number in wanted.items()):
        return None
    return f"The pools cannot hand KV blocks over: {why} (docs/models.md)"


def excerpt(log: str) -> str:
    """The part of a log that explains a failure: each error once, or else the last lines."""
    log = _PROCESS_NAME.sub("", log)
    causes = dict.fromkeys(_ERROR.findall(log))
    return "\n".join(list(causes)[-EXCERPT_ERRORS:] or log.splitlines()[-EXCERPT_LINES:])


def _require_free(host: str, port: int, options: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another with {options}"
            ) from error


def private(file: Path) -> Path:
    """Make a file that only its user can read, and return it. An error in a log may quote a request."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.parent.chmod(0o700)
    file.touch(mode=0o600)
    file.chmod(0o600)  # for a file that an earlier version has made
    return file


class RunningService:
    """`serve run` and everything it starts, started again until the user stops it."""

    def __init__(self, config_file: Path, config: dict[str, Any], serve: list[str], folder: Path = Path()) -> None:
        """`serve` is the command line of `serve`. The log file is inside `folder`."""
        self._command = [*serve, "run", str(config_file)]
        self._log_file = folder / LOG_FILE
        args = self._args = parse(config["applications"][0]["args"])
        self._environment = ray_environment(args, os.environ)
        host = LOOPBACK if args.ingress.host == ALL_INTERFACES else args.ingress.host
        self._url = f"http://{host}:{args.ingress.port}"
        num_cells = len(args.cells.names)
        self._wanted = {
            "prefill_workers": num_cells * args.prefill.replicas,
            "decode_workers": num_cells * args.decode.replicas,
        }
        self._stopping = threading.Event()
        self._mismatch: str | None = None
        """Why the engines that have started cannot hand over to each other."""

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stopping.set())
        log_file = private(self._log_file)
        print(f"Starting Baton with model {self._args.model_name} (log: {LOG_FILE})", flush=True)
        if log_file.exists() and log_file.stat().st_size:
            log_file.replace(log_file.with_suffix(".log.1"))  # it may contain the reason why the service ended before
            log_file = private(self._log_file)
        with log_file.open("wb") as log:
            try:
                while (ended := self._run_once(log)) is not None:
                    print(f"\nbaton: {ended} has ended. The service is started again", file=sys.stderr, flush=True)
            finally:
                stopped_by_user = self._stopping.is_set()
                self._stop_services()
        if stopped_by_user:
            print("Stopped.", flush=True)
            return 0
        return 1

    def _run_once(self, log: BinaryIO) -> str | None:
        """Run the service once. Returns what ended by itself after the service was ready, or None if the service was
        stopped or did not start.
        """
        begins_at = log.seek(0, os.SEEK_END)
        serve_run = ServeRun(self._command, REPO_ROOT, self._environment, log)
        try:
            if self._wait_until_ready(serve_run, begins_at):
                self._greet()
                return self._wait_for_end(serve_run)
            if not self._stopping.is_set():
                why = self._mismatch or f"From {LOG_FILE}:\n{excerpt(self._said(begins_at))}"
                print(f"baton: the service did not start. {why}", file=sys.stderr)
        finally:
            if self._stopping.is_set():
                print("\nStopping ...", flush=True)
            serve_run.stop()
        return None

    def _said(self, begins_at: int) -> str:
        with self._log_file.open("rb") as log:
            log.seek(begins_at)
            return log.read().decode(errors="replace")

    def _wait_until_ready(self, serve_run: ServeRun, begins_at: int) -> bool:
        shown = None
        started_at = time.monotonic()
        while not self._stopping.wait(POLL_S) and serve_run.ended() is None:
            serve_run.find_node()
            state = self._readiness()
            self._mismatch = mismatch(state, self._wanted)
            elapsed_s = time.monotonic() - started_at
            line = self._progress(state)
            if line != shown:
                print(f"[{elapsed_s:4.0f} s] {line}", flush=True)
                shown = line
            if state.get("ready"):
                return True
            if self._mismatch is not None:
                return False
            if elapsed_s > START_TIMEOUT_S or has_failed_to_start(self._said(begins_at)):
                return False
        return False

    def _readiness(self) -> dict[str, Any]:
        """The body of /readyz. Empty if the service does not answer."""
        try:
            return _object(answer_of(f"{self._url}/readyz", READY_TIMEOUT_S, MOST_ANSWER_BYTES))
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
                "model": self._args.model_name,
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "stream": True,
            }
        )
        is_own_cluster = self._environment["RAY_ADDRESS"] == _OWN_CLUSTER
        about_keys = how_to_send_a_key(self._args, is_on_this_machine=is_own_cluster)
        key = """-H "Authorization: Bearer $OPENAI_API_KEY" """ if about_keys else ""
        print(
            f"\nBaton is ready on {self._url} (OpenAI API at {self._url}/v1). Ctrl-C stops it.\n"
            f"{about_admin_port(self._args)}\n{about_keys}\nTry:\n\n"
            f"  curl -N {self._url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d '{body}'\n",
            flush=True,
        )

    def _stop_services(self) -> None:
        """Stop the embedded servers. The ingress replicas have stopped them already, unless they were killed."""
        if self._args.state.database_url is None:
            LocalPostgres(REPO_ROOT / self._args.state.data_dir / POSTGRES_FOLDER).stop()
        for folder in (REDIS_FOLDER, LIMITS_REDIS_FOLDER):
            LocalRedis(REPO_ROOT / self._args.state.data_dir / folder).stop()

    def _wait_for_end(self, serve_run: ServeRun) -> str | None:
        """Wait until something ends. Returns its name, or None if the user stops the service."""
        ended = None
        while not self._stopping.wait(POLL_S) and ended is None:
            ended = serve_run.ended()
        return None if self._stopping.is_set() else ended


def _object(body: bytes) -> dict[str, Any]:
    return dict(json.loads(body)) if body.startswith(b"{") else {}


def ray_environment(config: AppConfig, operator: Mapping[str, str]) -> dict[str, str]:
    """The environment of `serve run`: the operator's variables, and defaults. RAY_ADDRESS starts a new cluster, unless
    the operator names an existing one.
    """
    defaults = {
        "RAY_ADDRESS": _OWN_CLUSTER,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray's default, 15, is for batch work: all other processes would delay tokens
        **QUIET_RAY,
        "PYTHONPATH": str(REPO_ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    if config.internal_host is not None and is_loopback(config.internal_host):
        defaults |= _RAY_ON_LOOPBACK if operator.get("RAY_ADDRESS", _OWN_CLUSTER) == _OWN_CLUSTER else {}
    return {**defaults, **operator}


if __name__ == "__main__":
    main()
