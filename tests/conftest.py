from collections.abc import Iterator

import pytest

from tests.conformance.watch import RECORD

NUM_SHOWN = 10


@pytest.fixture(autouse=True)
def answers_follow_openai_s_document() -> Iterator[None]:
    """Those that pass through watched clients."""
    yield
    if deviations := RECORD.take():
        pytest.fail("\n".join(["what passed deviates from OpenAI's document:", *deviations[:NUM_SHOWN]]), pytrace=False)
