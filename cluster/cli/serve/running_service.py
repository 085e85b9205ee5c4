"""A service that `baton serve` has started: it is watched, and started again when a part of it ends."""

import json
import os
import signal
import sys
import threading
import time
import urllib.error
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO

from cluster.cli.accounts.first_key import how_to_send_a_key
from cluster.cli.ask_service import MOST_ANSWER_BYTES, about_admin_port
from cluster.cli.serve.ray_settings import OWN_CLUSTER, ray_environment
from cluster.cli.serve.serve_run import ServeRun
from cluster.cli.serve.start_log import LOG_FILE, excerpt, has_failed_to_start, private
from cluster.config.application import parse
from cluster.config.network import ALL_INTERFACES, LOOPBACK
from cluster.http_answer import answer_of
from cluster.repository import REPO_ROOT
from cluster.services.postgres import POSTGRES_FOLDER, LocalPostgres
from cluster.services.redis import LIMITS_REDIS_FOLDER, REDIS_FOLDER, LocalRedis

START_TIMEOUT_S = 1800.0
"""Time until the service must be ready, in seconds. Then `baton serve` stops it and ends with 1. A large model from a
network file system may take this long to load. Longer reports a service that hangs later; shorter stops a service that
is still loading.
"""
POLL_S = 1.0
"""Time between two checks of the service, in seconds. Longer notices a ready or ended service later; shorter sends more
requests to it.
"""
READY_TIMEOUT_S = 5.0
"""Time for one request to /readyz, in seconds. Then the service counts as not answering yet. Longer shows progress
later while an ingress hangs; shorter takes a busy ingress for one that does not answer.
"""


def mismatch(state: Mapping[str, Any], wanted: Mapping[str, int]) -> str | None:
    """Why the service will never be ready, if all workers have started and no pair of them can hand over. `state`: the
    body of /readyz; `wanted`: the number of workers, by its name there.
    """
    why = state.get("mismatch")
    if why is None or any(state[pool] < number for pool, number in wanted.items()):
        return None
    return f"The pools cannot hand KV blocks over: {why} (docs/models.md)"


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
        is_own_cluster = self._environment["RAY_ADDRESS"] == OWN_CLUSTER
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
