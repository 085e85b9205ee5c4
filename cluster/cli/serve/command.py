"""`baton serve`: runs `serve run` for an operator.

It applies --port, --admin-port and --model to the Serve config, shows progress while the engines start, prints when the
service is ready, and stops everything it started on Ctrl-C.
"""

import argparse
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cluster.cli.serve.ray_settings import OWN_CLUSTER
from cluster.cli.serve.running_service import RunningService
from cluster.config.application import parse
from cluster.network.certificates import use_certificates

LEAN_RAY = "cluster.cli.serve.lean_ray"
"""This module is not imported here: it imports Ray, which takes seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts the service and waits until it is stopped. A configuration that cannot work is refused: arguments of "
        "Baton, and engine arguments that Baton or vLLM does not have, before anything starts; models and engines that "
        "Baton cannot serve, before the weights are loaded; pools that cannot hand KV blocks over to each other, when "
        "both have started. docs/models.md lists what is refused. The command then prints the reason and ends with 1, "
        "or with 2 if nothing has been started."
    )
    parser.add_argument(
        "conf", nargs="?", type=Path, default=Path("conf/local.yaml"), help="Serve config (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, help="HTTP port (default: the port of the config)")
    parser.add_argument("--admin-port", type=int, help="port of operators (default: the admin port of the config)")
    parser.add_argument("--model", help="model folder or hub name (default: the model of the config)")
    parser.add_argument(
        "--ray-dashboard",
        action="store_true",
        help="start Ray's whole dashboard, for its web pages, instead of the part that `serve` and `ray list` ask: it "
        "takes memory, and CPU time also without load",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        ports = {"ingress": arguments.port, "admin": arguments.admin_port}
        config = configured(yaml.safe_load(arguments.conf.read_text()), ports, arguments.model)
        args = parse(config["applications"][0]["args"])
        _require_free(args.ingress.host, args.ingress.port, "PORT= or --port")
        _require_free(args.admin.host, args.admin.port, "ADMIN_PORT= or --admin-port")
        if os.environ.get("RAY_ADDRESS", OWN_CLUSTER) == OWN_CLUSTER:  # otherwise other nodes may have the files
            use_certificates(args.network.tls)
    except (OSError, ValueError, yaml.YAMLError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return 2
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as rendered:
        yaml.safe_dump(config, rendered)
        rendered.flush()
        whole = [str(Path(sys.executable).with_name("serve"))]
        serve = whole if arguments.ray_dashboard else [sys.executable, "-m", LEAN_RAY]
        return RunningService(Path(rendered.name), config, serve).run()


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


def _require_free(host: str, port: int, options: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another with {options}"
            ) from error
