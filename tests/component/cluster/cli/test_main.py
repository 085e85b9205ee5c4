"""What a process of `baton` imports: no command pays for the others."""

import subprocess
import sys

from cluster.cli.main import COMMANDS
from cluster.repository import REPO_ROOT
from tests.architecture.sources import PACKAGES

ASK_A_SERVICE = ("probe", "status", "why", "cells", "drain", "top", "trace", "quality")
"""Commands that send requests to a running service, and do nothing else."""
OF_THE_SERVICE = {
    "aiohttp",
    "fastapi",
    "nixl",
    "openai",
    "ray",
    "starlette",
    "torch",
    "transformers",
    "uvicorn",
    "vllm",
}
"""Packages that take seconds to import, and that no command needs to show its help or to reach stored state."""
HELP = """
import sys
before = set(sys.modules)
from cluster.cli.main import main
for command in sys.argv[1:]:
    sys.argv[1:] = [*command.split(), "--help"]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, command
print("\\n", *sorted({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
"""


def packages_for_help_of(*commands: str) -> set[str]:
    """The packages, apart from Python's own, that a process has imported which shows the help of these commands."""
    ran = subprocess.run([sys.executable, "-c", HELP, *commands], cwd=REPO_ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.splitlines()[-1].split())


def test_list_of_commands_needs_nothing_but_python() -> None:
    assert packages_for_help_of("") == {"cluster"}


def test_command_that_asks_a_service_needs_no_more_than_it_reads_and_shows() -> None:
    foreign = packages_for_help_of(*ASK_A_SERVICE) - {*PACKAGES}
    assert {name for name in foreign if "cython" not in name} == {"msgspec", "rich", "typing_extensions", "yaml"}


def test_no_command_loads_what_the_service_loads() -> None:
    assert packages_for_help_of(*COMMANDS) & OF_THE_SERVICE == set()


def test_unknown_command_is_refused_with_the_list_of_commands() -> None:
    command = [sys.executable, "-m", "cluster.cli.main", "nonsense"]
    ran = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"invalid choice: 'nonsense' (choose from {', '.join(map(repr, COMMANDS))})" in ran.stderr
