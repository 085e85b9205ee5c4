"""The `baton` command: its parser, and the table of its commands."""

import argparse
import sys
from importlib import import_module
from typing import Any, NamedTuple

from cluster.cli.reader import run_for_reader


class Command(NamedTuple):
    module: str
    """The module whose `add_arguments` completes the parser of the command. It is below `cluster.cli`."""
    summary: str
    """What the command does, in a line of `baton --help`."""


COMMANDS = {
    "serve": Command("serve.command", "start the service and wait until it is stopped"),
    "probe": Command("operate.probe", "show how KV blocks travel in a running service, and how fast"),
    "doctor": Command("operate.doctor", "check this machine before the first start"),
    "status": Command("operate.status", "show the state of a running service on one screen"),
    "why": Command(
        "operate.why", "explain a running service: idle pools, unproved links, refused requests, cold tiers"
    ),
    "cells": Command("cells", "show the cells of a running service, and drain or open one"),
    "drain": Command("operate.drain", "have a worker get no new requests, or undo that"),
    "top": Command("operate.top", "watch a running service: pools, workers, goodput, latencies and the last requests"),
    "trace": Command("operate.trace", "show where the time of one request has gone"),
    "quality": Command("operate.quality", "show whether the workers of a running service answer rightly"),
    "tenant": Command(
        "tenants.tenant",
        "make, list, suspend and set tenants; print the tenant of an old API key; erase what is stored of a tenant, or "
        "seal it with a new key",
    ),
    "project": Command("accounts.projects", "make, list and archive projects of tenants, and set their limits"),
    "key": Command("accounts.keys", "make, list, change, rotate and revoke API keys"),
    "state": Command("state", "operate on stored conversations"),
    "audit": Command("audit", "check or export the audit log of safety decisions"),
    "safety": Command("safety", "check the safety policies, or change one tenant's"),
    "usage": Command("tenants.usage", "sum up what tenants have used, and what it costs"),
    "compile": Command(
        "compile", "compile the modules of placement and screening to machine code, which is several times as fast"
    ),
    "simulate": Command("simulate", "compare placement policies on a simulated cluster"),
    "plan": Command("plan", "size the pools for a load, and say what they cost and what bounds them"),
    "replay": Command("operate.replay", "make the Scheduler's decisions again from its log, and explain them"),
    "load": Command("load.command", "put a load on an endpoint, and measure goodput, TTFT and TPOT"),
}
"""By name, in the order of `baton --help`."""


def main() -> None:
    sys.exit(run_for_reader(argument_parser().parse_args()))


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baton", description="Disaggregated prefill/decode LLM serving on Ray and vLLM."
    )
    commands = parser.add_subparsers(required=True, metavar="command", parser_class=CommandParser)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary, module=f"cluster.cli.{command.module}")
    return parser


class CommandParser(argparse.ArgumentParser):
    """The parser of a command. The module of the command is imported when the command is parsed, so that `baton --help`
    and the other commands start without it.
    """

    def __init__(self, *, module: str | None = None, **settings: Any) -> None:
        """`module`: None for a command of a command, which the module of that has completed."""
        super().__init__(**settings)
        self._module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._module is not None:
            import_module(self._module).add_arguments(self)
            self._module = None
        return super().parse_known_args(args, namespace)


if __name__ == "__main__":
    main()
