"""A process that strangers connect to may have as many files open as its system allows."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from cluster.network.open_files import allow_open_files
print(allow_open_files({number}), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "number", "expected"),
    [
        (256, 1000, 5000, (1000, 1000, 1000)),
        (256, 1000, 500, (500, 500, 1000)),
        (800, 1000, 500, (500, 800, 1000)),
    ],
)
def test_soft_limit_rises_as_far_as_the_hard_one_lets_it(
    soft: int, hard: int, number: int, expected: tuple[int, int, int]
) -> None:
    """A soft limit of 1,024, as many systems give, is full after some hundred strangers a second."""
    script = SCRIPT.format(soft=soft, hard=hard, number=number)
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert tuple(map(int, said.stdout.split())) == expected
