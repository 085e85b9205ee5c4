"""What is compiled decides as its sources do."""

import os
import subprocess
import sys

import pytest

from cluster.cli.compile import what_is_missing
from cluster.compiled import ROOT, SWITCH
from tests.sim.test_golden_decisions import GOLDEN

COMPILE = "import sys; from cluster.cli.main import main; sys.argv[1:] = ['compile']; main()"
DECIDE = """
from cluster import compiled
from tests.sim.test_golden_decisions import decisions
assert compiled.is_in_use()
print(decisions(), end="")
"""


def said_by(program: str) -> str:
    environment = {**os.environ, SWITCH: "0"}
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.skipif(what_is_missing() is not None, reason=f"nothing can be compiled: {what_is_missing()}")
@pytest.mark.timeout(280)  # a minute or two to compile, where these sources have not been
def test_compiled_decisions_are_those_of_the_tuned_policy() -> None:
    said_by(COMPILE)
    assert said_by(DECIDE).splitlines() == GOLDEN.read_text().splitlines()


@pytest.mark.skipif(what_is_missing() is not None, reason=f"nothing can be compiled: {what_is_missing()}")
@pytest.mark.timeout(280)
def test_what_is_compiled_already_is_not_compiled_again() -> None:
    said_by(COMPILE)
    assert "already compiled" in said_by(COMPILE)
