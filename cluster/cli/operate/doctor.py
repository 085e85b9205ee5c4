"""`baton doctor`: checks a machine before the first start of a service."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from cluster.config.application import AppConfig, parse
from cluster.doctor.checks import CHECKS, Examinee
from cluster.doctor.examination import examined
from cluster.doctor.facts.nodes import ray_address
from cluster.doctor.finding import CheckFinding, CheckResult, failed, ok

_COLOURS = {CheckResult.OK: 32, CheckResult.WARNING: 33, CheckResult.FAILED: 31, CheckResult.UNKNOWN: 36}
"""ANSI numbers: green, yellow, red, cyan."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Checks the software, the machine, the model, ports, keys, servers and nodes that a config "
        "wants, and says what to do about what is wrong. It starts and changes nothing of the service. To load vLLM "
        "and NIXL takes up to a minute. Ends with 1 if a check has failed."
    )
    parser.add_argument(
        "conf", nargs="?", type=Path, default=Path("conf/local.yaml"), help="Serve config (default: %(default)s)"
    )
    parser.add_argument("--ray", metavar="HOST:PORT", help="address of the Ray to join (default: RAY_ADDRESS)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    config, finding = checked_config(arguments.conf)
    subject = Examinee(conf=arguments.conf, config=config, ray=arguments.ray or ray_address())
    findings = [finding]
    if arguments.json:
        findings += [one for several in examined(subject, CHECKS) for one in several]
        print(json.dumps(msgspec.to_builtins(findings), indent=2))
    else:
        colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(line(finding, colours=colours), flush=True)
        for several in examined(subject, CHECKS):
            findings += several
            for one in several:
                print(line(one, colours=colours), flush=True)
        print(f"\n{summary(findings)}")
    return 1 if any(one.result is CheckResult.FAILED for one in findings) else 0


def checked_config(conf: Path) -> tuple[AppConfig | None, CheckFinding]:
    """The config, and what is wrong with it in the words of its own checks."""
    try:
        applications = yaml.safe_load(conf.read_text())["applications"]
        if len(applications) != 1:
            raise ValueError("it must be a Serve config with exactly one application")
        config = parse(applications[0].get("args") or {})
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        words = str(error) if isinstance(error, OSError | ValueError | yaml.YAMLError) else "it is no Serve config"
        todo = "correct it: the checks that need a config are left out"
        return None, failed("config", f"{conf}: {' '.join(words.split())}", todo)
    return config, ok("config", f"{conf}, model {config.model_name}")


def line(finding: CheckFinding, *, colours: bool) -> str:
    result = f"{finding.result:11}"
    if colours:
        result = f"\033[{_COLOURS[finding.result]}m{result}\033[0m"
    todo = f"\n{'':33}to do: {finding.todo}" if finding.todo else ""
    return f"{result}  {finding.check:18}  {finding.found}{todo}"


def summary(findings: Sequence[CheckFinding]) -> str:
    counts = {result: sum(one.result is result for one in findings) for result in CheckResult}
    return ", ".join(f"{number} {result}" for result, number in counts.items() if number)
