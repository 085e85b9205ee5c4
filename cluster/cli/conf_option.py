"""The option `--conf` of commands that read the Serve config without a running service."""

import argparse
from collections.abc import Callable
from pathlib import Path

import yaml

from cluster.config.application import AppConfig, parse


def add_conf(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    """`run`: the command. Returns the exit status."""
    add_conf_option(parser)
    parser.set_defaults(run=run)


def add_conf_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--conf", type=Path, default=Path("conf/local.yaml"), help="Serve config (default: %(default)s)"
    )


def config_of(arguments: argparse.Namespace) -> AppConfig:
    """Raises OSError, and ValueError, LookupError or YAMLError for a config that is not valid."""
    return parse(yaml.safe_load(arguments.conf.read_text())["applications"][0]["args"])
