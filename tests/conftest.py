import gc
import os
from collections.abc import Iterator

import pytest

from cluster import compiled
from cluster.config.environment import SECRET_VARIABLE
from tests.conformance.watch import RECORD

pytest_plugins = ("tests.drills.reporting",)
NUM_SHOWN = 10

gc.disable()  # until the tests are collected

os.environ.setdefault(compiled.SWITCH, "1")  # what is tested are the sources; 0 tests what they are compiled to


def pytest_collection_finish() -> None:
    """What modules are made of lives as long as the tests. The garbage collector would walk it again and again, which
    took a fifth of their time.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def belongs_to_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs as a process that Baton has started. A service that a test starts makes its own secret."""
    monkeypatch.setenv(SECRET_VARIABLE, "a secret that only the tests know")


@pytest.fixture(autouse=True)
def answers_follow_openai_s_document() -> Iterator[None]:
    """Answers that pass through watched clients follow OpenAI's document."""
    yield
    if deviations := RECORD.take():
        pytest.fail("\n".join(["what passed deviates from OpenAI's document:", *deviations[:NUM_SHOWN]]), pytrace=False)
